"""What a job does: which layers compute how long, and which tensors they need and make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hostlib.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import SimulationError

PS_PER_NS = 1000
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """One gradient, or a part of one.

    Attributes:
        turn: the number of its variable in the model, by which mechanisms deal tensors out.
        layer: the index of the layer whose forward pass needs it.
        order: its place in a server's distribution.
    """

    name: str
    bytes: int
    turn: int
    layer: int
    order: int

    @property
    def element_bytes(self) -> int:
        return 4 if self.bytes % 4 == 0 else 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace as the engine wants it.

    Attributes:
        forward_ns: by layer.
        backward_ns: (recorded workers, steps); a step ends with gradients.
        released: the tensors that each step makes.
    """

    tensors: tuple[Tensor, ...]
    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    released: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Variation:
    """How workers' computing differs.

    Attributes:
        jitter: standard deviation of a step's time over its mean; lognormal, for each worker, iteration and step.
        stragglers: times which a rank takes longer.

    Raises:
        SimulationError: a negative number.
    """

    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < float("inf"):
            raise SimulationError(f"jitter must be 0 or more, not {self.jitter}")
        for rank, factor in self.stragglers.items():
            if not 0 < factor < float("inf") or rank < 0:
                raise SimulationError(f"a straggler is RANK=FACTOR, the factor above 0, not {rank}={factor}")

    @property
    def is_none(self) -> bool:
        return self.jitter == 0 and not self.stragglers

    def durations_ps(self, means_ns: NDArray[np.int64], workers: int, iterations: int, salt: int) -> NDArray[np.int64]:
        """Rows by iteration and worker, or, where all are alike, as few as there are; picoseconds."""
        if self.is_none and len(means_ns) == 1:
            return means_ns * PS_PER_NS
        rows = np.tile(means_ns[np.arange(workers) % len(means_ns)] * PS_PER_NS, (iterations, 1)).astype(float)
        if self.jitter:
            sigma = np.sqrt(np.log1p(self.jitter**2))
            rows *= np.random.default_rng([self.seed, salt]).lognormal(-(sigma**2) / 2, sigma, rows.shape)
        for rank, factor in self.stragglers.items():
            if rank >= workers:
                raise SimulationError(f"no worker {rank} to be a straggler: there are {workers}")
            rows[rank::workers] *= factor
        return np.rint(rows).astype(np.int64)


def of_trace(trace: Trace, message_bytes: int = 0, bucket_bytes: int = 0) -> Workload:
    """A trace's workload.

    Args:
        message_bytes: tensors are cut into messages of at most so many; 0 for whole.
        bucket_bytes: gradients that follow each other are put together until there are so many; 0 for each alone.
    """
    number = {p.name: index for index, p in enumerate(trace.parameters)}
    layer = {each.name: index for index, each in enumerate(trace.layers)}
    order = {e.parameter: index for index, e in reversed(list(enumerate(trace.distribution)))}
    gradients = {e.parameter for e in trace.aggregation(trace.workers[0])}
    tensors: list[Tensor] = []
    parts: dict[str, tuple[int, ...]] = {}
    for p in trace.parameters:
        if p.name not in gradients:
            continue
        sizes = _parts(p.bytes, message_bytes)
        parts[p.name] = tuple(range(len(tensors), len(tensors) + len(sizes)))
        tensors += [Tensor(p.name, s, number[p.name], layer[p.layer], order.get(p.name, number[p.name])) for s in sizes]
    workers = [trace.aggregation(name) for name in trace.workers]
    first = [e.parameter for e in workers[0]]
    backward = []
    for events in workers:
        # Each gradient is a step of its own; on another worker it may be ready in another order, but is sent in this one.
        ready = {e.parameter: e.time_ns for e in events}
        times = np.maximum.accumulate([ready[name] for name in first])
        backward.append(np.diff(times, prepend=0) + np.where(np.arange(len(first)) == 0, trace.lead_ns, 0))
    forward = np.array([each.forward_ns for each in trace.layers], np.int64)
    workload = Workload(tuple(tensors), forward, np.array(backward, np.int64), tuple(parts[name] for name in first))
    return _bucketed(workload, bucket_bytes) if bucket_bytes else workload


def _bucketed(workload: Workload, bucket_bytes: int) -> Workload:
    """Tensors together as they are released; a bucket is released with its last one, and needed with its first layer.

    Source: Li et al. 2020, "PyTorch Distributed", section 3.2.3.
    """
    buckets: list[Tensor] = []
    released: list[tuple[int, ...]] = []
    held: list[Tensor] = []
    for number, step in enumerate(workload.released):
        held += [workload.tensors[t] for t in step]
        full = sum(tensor.bytes for tensor in held) >= bucket_bytes or number == len(workload.released) - 1
        released.append((len(buckets),) if full and held else ())
        if full and held:
            total, layer = sum(tensor.bytes for tensor in held), min(tensor.layer for tensor in held)
            total += -total % FLOAT_BYTES
            buckets.append(Tensor(f"bucket{len(buckets)}", total, len(buckets), layer, len(buckets)))
            held = []
    return Workload(tuple(buckets), workload.forward_ns, workload.backward_ns, tuple(released))


def of_size(size_bytes: int, message_bytes: int = 0) -> Workload:
    """One tensor and no computing: a bare all-reduce."""
    trace = synthesise([Layer("tensor", 0, 0)], [Parameter("tensor/values", max(1, size_bytes), "tensor")])
    return of_trace(trace, message_bytes)


def _parts(size: int, at_most: int) -> list[int]:
    """Sizes of a tensor's messages: as even as whole elements allow."""
    unit = 4 if size % 4 == 0 else 1
    count = -(-size // max(unit, at_most - at_most % unit)) if at_most else 1
    small, larger = divmod(size // unit, count)
    return [unit * (small + (part < larger)) for part in range(count)]
