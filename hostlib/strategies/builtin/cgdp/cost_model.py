"""CGDP's chunks of layers: which layers are sent to the host together, the best size, and its predicted cost.
Torch-free.

Layers are numbered from 1 to l in forward order; the backward pass goes from l to 1.

Source: "Involving CPUs into Multi-GPU Deep Learning", sections 3.2, 4.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hostlib.errors import RunError
from hostlib.traces.trace import Trace

NS_PER_S = 1e9
# Defaults for an unknown host: handing over a chunk, receiving and adding, and sending back to each worker.
SYNCHRONISATION_US, ACCUMULATION_GB_S, BROADCAST_GB_S = 10.0, 4.0, 10.0

Chunk = tuple[int, ...]  # layers of a chunk, in backward order


def partition(layers: int, size: int) -> tuple[Chunk, ...]:
    """Partition layers into chunks of one size, in backward order.

    The last layers of the backward pass are chunks of their own, because no later computation could hide a large chunk.
    So a size of `layers` or more is the same as 1.

    Source: section 4.2.

    Raises:
        RunError: there are no layers, or the size is below 1.
    """
    if layers < 1 or size < 1:
        raise RunError(f"--layers and --chunk must be at least 1, not {layers} and {size}")
    whole, rest = divmod(layers, size)
    if rest == 0:
        whole, rest = whole - 1, size
    together = (tuple(range(layers - n * size, layers - (n + 1) * size, -1)) for n in range(whole))
    return (*together, *((layer,) for layer in range(rest, 0, -1)))


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement of a search: the time of `interval` iterations with a chunk size."""

    chunk: int
    lapse_s: float
    best: int


@dataclass(slots=True)
class Search:
    """Finds a good chunk size in the first iterations.

    Attributes:
        step: sizes below it are tried one by one; above it, sizes grow by `step`.
        range: number of steps beyond the best size that are tried.
        interval: number of iterations that are timed together.
        layers: of the network; sizes that equal 1 are not tried. None for unlimited.
        chunk: the size for the next interval.
        best: the fastest so far.

    Source: section 4.2 and figure 4. The termination test uses the chunk size just measured, which is how the paper's
    search with step = 10, range = 5 ends at iteration 150.

    Raises:
        RunError: a number below 1.
    """

    step: int
    range: int
    interval: int = 10
    layers: int | None = None
    chunk: int = 1
    best: int = 1
    over: bool = False
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("step", "range", "interval"):
            if getattr(self, name) < 1:
                raise RunError(f"the search's {name} must be at least 1, not {getattr(self, name)}")

    def measured(self, lapse_s: float) -> None:
        """Record the time of the last `interval` iterations with `chunk`."""
        if lapse_s < min((trial.lapse_s for trial in self.trials), default=float("inf")):
            self.best = self.chunk
        self.trials.append(Trial(self.chunk, lapse_s, self.best))
        following = self.chunk + (1 if self.chunk < self.step else self.step)
        beyond = self.layers is not None and following >= self.layers
        self.over = beyond or self.chunk >= self.best + self.step * self.range
        self.chunk = self.best if self.over else following


def search(lapses_s: dict[int, float], step: int, range: int, interval: int, layers: int | None = None) -> Search:
    """Run a search to its end on known times by chunk size.

    Raises:
        RunError: it needs a size whose time is missing.
    """
    made = Search(step, range, interval, layers)
    while not made.over:
        if made.chunk not in lapses_s:
            raise RunError(f"the search needs the time of chunk size {made.chunk}, which is missing")
        made.measured(lapses_s[made.chunk])
    return made


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A layer's costs in the backward pass, in seconds.

    Attributes:
        backward: its own back-propagation (bp).
        synchronisation: handing its gradient over to the host, which back-propagation waits for (as).
        accumulation: summing it on the host, with the copy to it (aa).
        broadcast: sending the sum back to the worker (bc).
    """

    backward: float
    synchronisation: float
    accumulation: float
    broadcast: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The cost model's prediction of the backward pass, in seconds.

    Attributes:
        done: of each chunk, in backward order: when its sum has reached the workers, from the start of the backward
            pass.
        backward: back-propagation of all layers.
    """

    chunks: tuple[Chunk, ...]
    done: tuple[float, ...]
    backward: float

    @property
    def total(self) -> float:
        """Time until the last sum has arrived (T)."""
        return max(self.done)

    @property
    def overhead(self) -> float:
        """Time in addition to back-propagation. The paper's equation (2) assumes that the last chunk ends last."""
        return self.total - self.backward


def predict(costs: Sequence[LayerCost], chunks: Iterable[Chunk], in_turn: bool = False) -> Prediction:
    """Predict the backward pass with accumulation on the host, chunk by chunk.

    A chunk is handed over once, when its last layer has been back-propagated; its layers' accumulations and broadcasts
    follow each other. Of several layers in a chunk, the last one's synchronisation counts.

    Args:
        costs: of layers 1 to l.
        in_turn: the host finishes one chunk before it begins the next, as `shm` does; in the paper's model it works on
            any number at a time.

    Source: section 3.2, equation (1); section 4.1 for chunks.
    """
    made = tuple(chunks)
    members = [[costs[layer - 1] for layer in chunk] for chunk in made]
    reached = accumulate(sum(c.backward for c in some) + some[-1].synchronisation for some in members)
    done: list[float] = []
    for at, some in zip(reached, members, strict=True):
        begin = max(at, done[-1]) if in_turn and done else at
        done.append(begin + sum(c.accumulation + c.broadcast for c in some))
    return Prediction(made, tuple(done), sum(c.backward for c in costs))


def without_overlap(costs: Iterable[LayerCost]) -> float:
    """Time of the backward pass if everything is summed after it, in seconds (T').

    Source: section 3.2.
    """
    return sum(c.backward + c.accumulation + c.broadcast for c in costs)


def trained_layers(trace: Trace) -> tuple[tuple[str, ...], ...]:
    """The parameters of each of a trace's trained layers, in forward order."""
    of_layer: dict[str, list[str]] = {layer.name: [] for layer in trace.layers}
    for parameter in trace.parameters:
        if parameter.trained:
            of_layer[parameter.layer].append(parameter.name)
    return tuple(tuple(names) for names in of_layer.values() if names)


def costs_of(
    trace: Trace,
    synchronisation_s: float,
    accumulation_bytes_s: float,
    broadcast_bytes_s: float,
    layers: Sequence[Sequence[str]] = (),
) -> list[LayerCost]:
    """The costs of a trace's trained layers, on a host that adds and copies at these rates.

    Computing time of layers without parameters counts with the trained layer whose gradient is next.

    Args:
        layers: groups of parameters, in forward order, if they differ from the trace's layers.

    Raises:
        RunError: no layer is trained.
    """
    layers = layers or trained_layers(trace)
    if not layers:
        raise RunError("no layer of this trace is trained")
    number = {name: index for index, names in enumerate(layers) for name in names}
    sizes, backward_ns = [0] * len(layers), [0] * len(layers)
    trains: dict[str, int] = {}
    for parameter in trace.parameters:
        if parameter.name in number:
            sizes[number[parameter.name]] += parameter.bytes
            trains[parameter.layer] = number[parameter.name]
    untrained_ns = 0
    for layer in reversed(trace.layers):
        untrained_ns += layer.backward_ns
        if layer.name in trains:
            backward_ns[trains[layer.name]] += untrained_ns
            untrained_ns = 0
    return [
        LayerCost(ns / NS_PER_S, synchronisation_s, size / accumulation_bytes_s, size / broadcast_bytes_s)
        for ns, size in zip(backward_ns, sizes, strict=True)
    ]
