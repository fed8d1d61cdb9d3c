"""Chunks of layers: what CGDP sends to the host together, which size is best, and what a size costs. Torch-free.

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
# Of a host of which nothing is known: handing a chunk over, taking in and adding, and giving back to each worker.
SYNCHRONISATION_US, ACCUMULATION_GB_S, BROADCAST_GB_S = 10.0, 4.0, 10.0

Chunk = tuple[int, ...]  # layers, in backward order


def partition(layers: int, size: int) -> tuple[Chunk, ...]:
    """The chunks of one size, in backward order. The last layers of the backward pass are chunks of their own: nothing
    of the backward pass comes after them to hide a large chunk behind.

    So a size of `layers` or more is the same as 1.

    Source: section 4.2.

    Raises:
        RunError: there are no layers, or a chunk would have none.
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
    """One measurement of a search: how long `interval` iterations with a chunk size took."""

    chunk: int
    lapse_s: float
    best: int


@dataclass(slots=True)
class Search:
    """Finds a good chunk size in the first iterations.

    Attributes:
        step: sizes below it are tried one by one, from there on each is larger by `step`.
        range: how many steps beyond the best size are tried.
        interval: iterations that are timed together.
        layers: of the network; sizes that are the same as 1 are not tried. None for as many as are needed.
        chunk: the size for the next interval.
        best: the fastest so far.

    Source: section 4.2 and figure 4. The test that ends it is on the chunk just measured, which is how the paper's
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
        """The last `interval` iterations, with `chunk`, took so long."""
        if lapse_s < min((trial.lapse_s for trial in self.trials), default=float("inf")):
            self.best = self.chunk
        self.trials.append(Trial(self.chunk, lapse_s, self.best))
        following = self.chunk + (1 if self.chunk < self.step else self.step)
        beyond = self.layers is not None and following >= self.layers
        self.over = beyond or self.chunk >= self.best + self.step * self.range
        self.chunk = self.best if self.over else following


def search(lapses_s: dict[int, float], step: int, range: int, interval: int, layers: int | None = None) -> Search:
    """A search whose measurements are known beforehand, by chunk size, to its end.

    Raises:
        RunError: it wants to know of a size that is not among them.
    """
    made = Search(step, range, interval, layers)
    while not made.over:
        if made.chunk not in lapses_s:
            raise RunError(f"the search comes to chunk size {made.chunk}, of which no time is given")
        made.measured(lapses_s[made.chunk])
    return made


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer's part of the backward pass takes, in seconds.

    Attributes:
        backward: its own back-propagation (bp).
        synchronisation: handing its gradient over to the host, which back-propagation waits for (as).
        accumulation: summing it on the host, with the copy to it (aa).
        broadcast: the sum's way back to the worker (bc).
    """

    backward: float
    synchronisation: float
    accumulation: float
    broadcast: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of the backward pass, in seconds.

    Attributes:
        done: of each chunk, in backward order: when its sum is with the workers, from the backward pass's begin on.
        backward: all layers' own back-propagation.
    """

    chunks: tuple[Chunk, ...]
    done: tuple[float, ...]
    backward: float

    @property
    def total(self) -> float:
        """Until the last sum is there (T)."""
        return max(self.done)

    @property
    def overhead(self) -> float:
        """What is added to back-propagation. The paper's equation (2) is the case that the last chunk ends last."""
        return self.total - self.backward


def predict(costs: Sequence[LayerCost], chunks: Iterable[Chunk], in_turn: bool = False) -> Prediction:
    """The backward pass with accumulation on the host, chunk by chunk.

    A chunk is handed over once, when its last layer has been back-propagated; its layers' accumulations and broadcasts
    follow each other. Of several layers in a chunk, the last one's synchronisation counts.

    Args:
        costs: of layers 1 to l.
        in_turn: the host is through with one chunk before it begins with the next, as `shm` is; the paper's model has it
            at any number of them.

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
    """The backward pass when everything is summed after it, in seconds (T').

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

    What layers without parameters compute counts with the trained layer whose gradient is the next.

    Args:
        layers: parameters that belong together, in forward order, where that is other than the trace has it.

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
