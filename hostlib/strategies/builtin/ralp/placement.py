"""RALP's profiler: whether a model gains from having its last layers on the server, and from which layer on.
Torch-free.

Source: "RALP", sections 4.3 and 6.2; docs/ralp.md explains how its definitions are interpreted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.models.layer_info import LayerInfo

THRESHOLD = -0.5  # the paper's "moderately skewed", and beyond
HEAVY: dict[str, str] = {  # compute-intensive kinds of layers: none of them may be placed on the server
    "conv": "convolutions follow",
    "attention": "attention follows",
}


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """A possible split after a layer.

    Attributes:
        output: elements of the layer's output for a worker's whole batch.
        kept: parameters of the layer and of all before it, which stay with the workers.
        obstacle: why the model must not be split here; None if it may be.
    """

    layer: LayerInfo
    output: int
    kept: int
    obstacle: str | None

    @property
    def cost(self) -> int:
        """Elements that a worker sends in a step, and receives again."""
        return self.output + self.kept


@dataclass(frozen=True, slots=True)
class Placement:
    """The profiler's measurements of each layer, and its decision.

    Attributes:
        batch: examples of one worker in a step.
        cuts: the split after every layer, in order.
    """

    batch: int
    threshold: float
    skewness: float
    cuts: tuple[SplitPoint, ...]

    @property
    def skewed(self) -> bool:
        return self.skewness < self.threshold

    @property
    def cheapest(self) -> SplitPoint:
        """The cheapest of the possible splits; after the last layer, everything stays with the workers."""
        return min((cut for cut in self.cuts if cut.obstacle is None), key=lambda cut: cut.cost)

    @property
    def split(self) -> SplitPoint | None:
        """Where to split, skewed or not; None if it is cheapest to leave all parameters with the workers."""
        return None if self.cheapest.kept == self.params else self.cheapest

    @property
    def partition(self) -> bool:
        return self.skewed and self.split is not None

    @property
    def params(self) -> int:
        return self.cuts[-1].kept

    @property
    def verdict(self) -> str:
        """The decision in a sentence."""
        if not self.skewed:
            return f"No partition: the skewness {self.skewness:.2f} is not below the threshold {self.threshold:g}."
        if self.split is None:
            return (
                f"No partition: with {_examples(self.batch)} per worker and step, no possible split sends less "
                "than leaving everything with the workers."
            )
        return (
            f"Partition: the skewness {self.skewness:.2f} is below the threshold {self.threshold:g}; the layers after "
            f"{self.split.layer.name} go to the server. With {_examples(self.batch)} per worker and step, a worker "
            f"sends {self.split.cost:,} elements instead of {self.params:,}."
        )

    def behind(self, name: str) -> SplitPoint:
        """The split after a layer, regardless of the profiler's decision.

        Raises:
            UnknownNameError: no layer has that name.
            HostlibError: there are no parameters before it, or none after it.
        """
        cut = next((cut for cut in self.cuts if cut.layer.name == name), None)
        if cut is None:
            raise UnknownNameError("layer", name, (cut.layer.name for cut in self.cuts))
        if cut.kept in (0, self.params):
            where = "after" if cut.kept else "before"
            raise HostlibError(f"the model cannot be cut behind {name}: no layer {where} it has parameters")
        return cut


def skewness(layers: Sequence[LayerInfo]) -> float:
    """Skewness of the layers' indices, weighted by their parameters: negative if most are in the last layers.

    0 if all parameters are in one layer, or there are none.

    Source: "RALP", section 4.3, equation 1 (which, applied to the parameter counts themselves, would be positive).
    """
    total = sum(layer.params for layer in layers)
    if total == 0:
        return 0.0
    mean = sum(layer.params * layer.index for layer in layers) / total
    second, third = (sum(layer.params * (layer.index - mean) ** k for layer in layers) / total for k in (2, 3))
    return third / second**1.5 if second > 0 else 0.0


def place(layers: Sequence[LayerInfo], batch: int = 1, threshold: float = THRESHOLD) -> Placement:
    """Run the profiler's three steps.

    Raises:
        HostlibError: no layer has parameters, the batch is below 1, or the threshold is not a number.
    """
    if not any(layer.params for layer in layers):
        raise HostlibError("the model cannot be cut: none of its layers has parameters")
    if batch < 1:
        raise HostlibError(f"--batch must be at least 1, not {batch}")
    if math.isnan(threshold):
        raise HostlibError("the threshold must be a number, not nan")
    kept, cuts = 0, []
    for position, layer in enumerate(layers):
        kept += layer.params
        cuts.append(SplitPoint(layer, batch * layer.output, kept, _obstacle(kept, layers[position + 1 :])))
    return Placement(batch, threshold, skewness(layers), tuple(cuts))


def _obstacle(kept: int, after: Sequence[LayerInfo]) -> str | None:
    if kept == 0:
        return "no parameters before this point"
    heavy = next((layer.kind for layer in after if layer.kind in HEAVY), None)
    return None if heavy is None else HEAVY[heavy]


# ---- a job's traffic ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Volume:
    """Elements that all links together carry in one step, with one worker, a ring, or partitioned."""

    ring: int
    ralp: int


def volume(placement: Placement, workers: int) -> Volume:
    """The traffic that section 6.2 calculates for Table 2.

    Raises:
        HostlibError: there is no worker.
    """
    if workers < 1:
        raise HostlibError(f"--workers must be at least 1, not {workers}")
    return Volume(2 * placement.params * (workers - 1), 2 * workers * placement.cheapest.cost)


@dataclass(frozen=True, slots=True)
class Shares:
    """How a job's GPUs are shared out."""

    name: str
    workers: int
    servers: int


def shares(gpus: int) -> tuple[Shares, ...]:
    """The four ways that section 6.2 compares, for a job with a number of GPUs.

    Raises:
        HostlibError: fewer than two GPUs.
    """
    if gpus < 2:
        raise HostlibError(f"--gpus must be at least 2, for a worker and a server, not {gpus}")
    half = gpus // 2
    return (
        Shares("parameter servers", half, half),
        Shares("Horovod", gpus, 0),
        Shares("RALP-H", half, 1),
        Shares("RALP-N", gpus - 1, 1),
    )


def _examples(count: int) -> str:
    return f"{count} example{'' if count == 1 else 's'}"
