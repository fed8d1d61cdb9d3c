"""Cut a chain of layers into a pipeline's stages so that the slowest stage is as fast as possible. Exact; torch-free.

A stage computes and transfers at the same time, so it takes the longer of its layers' forward and backward passes, and
its transfers: its output to the next stage, and that output's gradient back.

Source: Narayanan et al. 2019, "PipeDream", section 3.1 (the optimisation problem, and stages with replicas).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hostlib.errors import HostlibError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A layer's costs, of one batch or of one micro-batch.

    Attributes:
        activation_bytes: of everything that the layers after this one need from this one and those before it.
        parameter_bytes: of its trained parameters.
    """

    forward_ns: float
    backward_ns: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True, slots=True)
class Link:
    """Between two workers. The default's transfers take no time.

    Attributes:
        bytes_per_ns: in each direction; 1.25 for 10 Gbit/s.
        latency_ns: of a message.
    """

    bytes_per_ns: float = math.inf
    latency_ns: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_ns > 0 or not self.latency_ns >= 0:
            raise HostlibError("a link's bandwidth must be above 0, and its latency at least 0")

    def transfer_ns(self, size: float) -> float:
        return self.latency_ns + size / self.bytes_per_ns


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers first to end - 1, on `replicas` workers, which share the examples."""

    first: int
    end: int
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Partition:
    """A chain cut into stages.

    Attributes:
        slowest_ns: what the slowest stage, or transfer between stages, takes.
    """

    stages: tuple[Stage, ...]
    slowest_ns: float

    @property
    def cuts(self) -> tuple[int, ...]:
        """Each stage's first layer, without the first stage's."""
        return tuple(stage.first for stage in self.stages[1:])


def partition(layers: Sequence[LayerCost], stages: int, link: Link | None = None) -> Partition:
    """Cut layers into exactly that many stages, one worker each.

    Of all cuts with the fastest slowest stage, those that transfer the fewest bytes; of those, the most even ones.
    O(stages x layers^2).

    Raises:
        HostlibError: there are fewer layers than stages, or no stages.
    """
    _require(layers, stages)
    link = link or Link()
    compute = _compute(layers)
    crossing = np.array([0.0, *(2 * link.transfer_ns(each.activation_bytes) for each in layers[:-1])])
    # A stage's time with its transfer to the next one counts at that next one's first layer.
    times = np.maximum(compute, crossing[:, np.newaxis])
    slowest = _chain(times, stages, np.maximum)[0]
    carried = np.array([0.0, *(each.activation_bytes for each in layers[:-1])])
    # Squares of shares of the whole time are least where stages are even. They add up to at most a byte.
    uneven = (compute / max(compute[0, -1], 1e-9)) ** 2
    fewest = np.where(times <= slowest, carried[:, np.newaxis] + uneven, np.inf)
    _, firsts = _chain(fewest, stages, np.add)
    ends = (*firsts[1:], len(layers))
    return Partition(tuple(Stage(first, end) for first, end in zip(firsts, ends, strict=True)), slowest)


def partition_with_replicas(layers: Sequence[LayerCost], workers: int, link: Link | None = None) -> Partition:
    """Cut layers into any number of stages with replicas, which use all workers together.

    A stage with m replicas computes 1/m of the examples on each. They all-reduce its gradients, while they compute, in
    2 (m - 1) / m times its parameters' bytes for each worker. The costs are those of the examples between two updates.
    O(workers^2 x layers^2).

    Raises:
        HostlibError: there are no layers, or no workers.
    """
    _require(layers, 1)
    if workers < 1:
        raise HostlibError(f"a pipeline needs at least 1 worker, not {workers}")
    link = link or Link()
    count = len(layers)
    compute = _compute(layers)
    weights = np.array([0.0, *np.cumsum([each.parameter_bytes for each in layers])])
    sizes = weights[np.newaxis, 1:] - weights[:-1, np.newaxis]
    crossing = np.array([0.0, *(2 * link.transfer_ns(each.activation_bytes) for each in layers[:-1])])
    stage_ns: dict[int, Array] = {}
    for replicas in range(1, workers + 1):
        reduced = 2 * (replicas - 1) * (link.latency_ns + sizes / (replicas * link.bytes_per_ns))
        stage_ns[replicas] = np.maximum(compute / replicas, np.where(np.isfinite(compute), reduced, np.inf))
    # best[m][j]: layers before j on m workers; step[m][j]: the first layer of the last stage, and its replicas.
    best = [np.full(count + 1, np.inf) for _ in range(workers + 1)]
    best[0][0] = 0.0
    step: list[list[tuple[int, int]]] = [[(0, 0)] * (count + 1) for _ in range(workers + 1)]
    for used in range(1, workers + 1):
        for replicas in range(1, used + 1):
            before = np.maximum(best[used - replicas][:-1], crossing)
            times = np.maximum(before[:, np.newaxis], stage_ns[replicas])
            firsts = times.argmin(axis=0)
            found = times[firsts, np.arange(count)]
            for end in np.flatnonzero(found < best[used][1:]).tolist():
                best[used][end + 1] = found[end]
                step[used][end + 1] = (int(firsts[end]), replicas)
    stages: list[Stage] = []
    used, end = workers, count
    while end:
        first, replicas = step[used][end]
        stages.insert(0, Stage(first, end, replicas))
        used, end = used - replicas, first
    return Partition(tuple(stages), float(best[workers][count]))


def _require(layers: Sequence[LayerCost], stages: int) -> None:
    if stages < 1:
        raise HostlibError(f"a pipeline needs at least 1 stage, not {stages}")
    if len(layers) < stages:
        raise HostlibError(f"{len(layers)} layers cannot be cut into {stages} stages")


def _compute(layers: Sequence[LayerCost]) -> Array:
    """[i, j]: both passes of layers i to j; infinite for j < i."""
    ends = np.cumsum([each.forward_ns + each.backward_ns for each in layers])
    begins = np.concatenate(([0.0], ends[:-1]))
    return np.where(np.tri(len(layers), k=-1, dtype=bool), np.inf, ends[np.newaxis, :] - begins[:, np.newaxis])


def _chain(cost: Array, stages: int, combine: Callable[[Array, Array], Array]) -> tuple[float, list[int]]:
    """The cheapest way to cover all layers by that many stages, and each stage's first layer.

    Args:
        cost: [i, j] of a stage of layers i to j.
        combine: a stage's cost with the cost of those before it: np.maximum or np.add.
    """
    count = len(cost)
    before = np.full(count, np.inf)
    before[0] = 0.0
    chosen = []
    for _ in range(stages):
        # Infinity marks the impossible for both ways to combine, and no cost is negative.
        total = combine(np.broadcast_to(before[:, np.newaxis], cost.shape), cost)
        firsts = total.argmin(axis=0)
        chosen.append(firsts)
        until = total[firsts, np.arange(count)]
        before = np.concatenate(([np.inf], until[:-1]))
    firsts_of_stages: list[int] = []
    end = count
    for firsts in reversed(chosen):
        end = int(firsts[end - 1])
        firsts_of_stages.insert(0, end)
    return float(until[-1]), firsts_of_stages
