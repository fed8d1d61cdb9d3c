"""A job's workload: how long layers compute, and which tensors they need and make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hostlib.schedules.contract import Collective
from hostlib.strategies.plan import Exchange, Plan
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import SimulationError

PS_PER_NS = 1000
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Tensor:
    """One gradient, or a part of one; or a tensor that an exchange carries.

    Attributes:
        turn: the number of its variable in the model, by which mechanisms assign tensors.
        layer: index of the layer whose forward pass needs it.
        order: its place in a server's distribution.
        exchange: carries it to the workers; None: the mechanism does.
        first_part: index of the first of the parts of one tensor that follow each other; None: it is whole.
        workers: the ranks that sum it; empty: all.
        collective: what the mechanism does with it, one tensor of a kind at a time; None: what the job is about.
    """

    name: str
    bytes: int
    turn: int
    layer: int
    order: int
    exchange: Exchange | None = None
    first_part: int | None = None
    workers: tuple[int, ...] = ()
    collective: Collective | None = None

    @property
    def element_bytes(self) -> int:
        return 4 if self.bytes % 4 == 0 else 1


@dataclass(frozen=True, slots=True)
class Workload:
    """A plan in the simulator's form.

    Attributes:
        forward_ns: by layer.
        backward_ns: (recorded workers, steps); a step ends with gradients.
        released: the tensors that each step makes.
        errands: the tensors that the forward pass makes, and the backward pass waits for.
        gathers: (tensor, step that begins it, step that waits for it), of weights in shards; steps are those of the
            forward pass, then those of the backward pass.
    """

    tensors: tuple[Tensor, ...]
    forward_ns: NDArray[np.int64]
    backward_ns: NDArray[np.int64]
    released: tuple[tuple[int, ...], ...]
    errands: tuple[int, ...] = ()
    gathers: tuple[tuple[int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        return len(self.forward_ns) + len(self.released)

    @property
    def asked(self) -> list[list[int]]:
        """The tensors that a worker begins when it comes to a step, by step."""
        return [[t for t, asked, _ in self.gathers if asked == step] for step in range(self.steps)]

    @property
    def awaited(self) -> list[list[int]]:
        """The tensors that a step waits for, by step."""
        return [[t for t, _, needed in self.gathers if needed == step] for step in range(self.steps)]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def summed(self) -> tuple[Tensor, ...]:
        """The tensors that the mechanism sums or gathers, which come first."""
        return tuple(tensor for tensor in self.tensors if tensor.exchange is None)


@dataclass(frozen=True, slots=True)
class Variation:
    """Variation of computing times between workers.

    Attributes:
        jitter: standard deviation of a step's time over its mean; lognormal, for each worker, iteration and step.
        stragglers: rank -> factor by which it is slower.

    Raises:
        SimulationError: a negative number.
    """

    jitter: float = 0.0
    stragglers: Mapping[int, float] = field(default_factory=dict)
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.jitter < float("inf"):
            raise SimulationError(f"jitter must be 0 or more, not {self.jitter}")
        if not 0 <= self.seed < 2**63:
            raise SimulationError(f"the seed must be at least 0 and below 2^63, not {self.seed}")
        for rank, factor in self.stragglers.items():
            if not 0 < factor < float("inf") or rank < 0:
                raise SimulationError(f"--straggler takes RANK=FACTOR, with FACTOR above 0, not {rank}={factor}")

    @property
    def is_none(self) -> bool:
        return self.jitter == 0 and not self.stragglers

    def durations_ps(self, means_ns: NDArray[np.int64], workers: int, iterations: int, salt: int) -> NDArray[np.int64]:
        """Times in picoseconds, with a row per iteration and worker, or fewer if rows are equal."""
        if self.is_none and len(means_ns) == 1:
            return means_ns * PS_PER_NS
        rows: NDArray[np.float64] = np.tile(
            means_ns[np.arange(workers) % len(means_ns)] * PS_PER_NS, (iterations, 1)
        ).astype(float)
        if self.jitter:
            sigma = np.sqrt(np.log1p(self.jitter**2))
            rows *= np.random.default_rng([self.seed, salt]).lognormal(-(sigma**2) / 2, sigma, rows.shape)
        for rank, factor in self.stragglers.items():
            if rank >= workers:
                raise SimulationError(f"--straggler {rank}: there are only {workers} workers")
            rows[rank::workers] *= factor
        rounded: NDArray[np.int64] = np.rint(rows).astype(np.int64)
        return rounded

    def operations_ps(self, means_ns: NDArray[np.int64], ranks: NDArray[np.int64], salt: int) -> NDArray[np.int64]:
        """Times of computing operations in picoseconds, each by the worker of that rank."""
        times = (means_ns * PS_PER_NS).astype(float)
        if self.jitter:
            sigma = np.sqrt(np.log1p(self.jitter**2))
            times *= np.random.default_rng([self.seed, salt]).lognormal(-(sigma**2) / 2, sigma, times.shape)
        for rank, factor in self.stragglers.items():
            times[ranks == rank] *= factor
        rounded: NDArray[np.int64] = np.rint(times).astype(np.int64)
        return rounded


def of_trace(trace: Trace, message_bytes: int = 0, bucket_bytes: int = 0) -> Workload:
    """The workload of a trace whose gradients are summed as soon as they are ready; see of_plan."""
    return of_plan(Plan(trace), message_bytes, bucket_bytes)


def of_plan(plan: Plan, message_bytes: int = 0, bucket_bytes: int = 0) -> Workload:
    """A plan's workload.

    Args:
        message_bytes: the mechanism's tensors are cut into messages of at most this size; 0 for whole tensors.
        bucket_bytes: consecutive gradients are combined up to this size; 0 for each by itself. Ignored if the plan has
            chunks.
    """
    everybody: list[tuple[int, ...]] = [()]
    summed_by = {p.name: [] if plan.groups else everybody for p in plan.trace.parameters}
    for group in plan.groups:
        for name in group.parameters if len(group.workers) > 1 else ():
            summed_by[name].append(group.workers)
    for each in plan.carried:
        summed_by |= {name: [] for name in each.parameters}
    workload = _summed(plan.trace, summed_by, message_bytes)
    if plan.chunks:
        workload = _in_chunks(workload, plan.chunks)
    elif bucket_bytes:
        workload = _bucketed(workload, bucket_bytes)
    return _with_exchanges(_sharded(workload, plan), plan)


def _sharded(workload: Workload, plan: Plan) -> Workload:
    """Name the collective that sums gradients, and append the weights that are gathered."""
    if not plan.is_sharded:
        return workload
    sizes = {p.name: p.bytes for p in plan.trace.parameters}
    number = {p.name: index for index, p in enumerate(plan.trace.parameters)}
    tensors = [replace(tensor, collective=plan.summing) for tensor in workload.tensors]
    gathers = []
    for each in plan.gathers:
        gathers.append((len(tensors), each.asked, each.needed))
        first = min(number[name] for name in each.parameters)
        size = sum(sizes[name] for name in each.parameters)
        tensors.append(Tensor(each.name, size, first, 0, first, collective=Collective.ALL_GATHER))
    return replace(workload, tensors=tuple(tensors), gathers=tuple(gathers))


def _summed(trace: Trace, summed_by: Mapping[str, Sequence[tuple[int, ...]]], message_bytes: int) -> Workload:
    """The tensors that the mechanism sums.

    Args:
        summed_by: parameter -> the groups of ranks that sum it, each by itself; see Tensor.workers.
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
        place = number[p.name], layer[p.layer], order.get(p.name, number[p.name])
        sizes = _parts(p.bytes, message_bytes)
        made = [Tensor(p.name, size, *place, workers=workers) for workers in summed_by[p.name] for size in sizes]
        parts[p.name] = tuple(range(len(tensors), len(tensors) + len(made)))
        tensors += made
    workers = [trace.aggregation(name) for name in trace.workers]
    first = [e.parameter for e in workers[0]]
    backward = []
    for events in workers:
        # Each gradient is a step of its own; another worker may compute it in another order, but sends it in this one.
        ready = {e.parameter: e.time_ns for e in events}
        times = np.maximum.accumulate([ready[name] for name in first])
        backward.append(np.diff(times, prepend=0) + np.where(np.arange(len(first)) == 0, trace.lead_ns, 0))
    forward = np.array([each.forward_ns for each in trace.layers], np.int64)
    released = tuple(parts.get(name, ()) for name in first)
    return Workload(tuple(tensors), forward, np.array(backward, np.int64), released)


def _with_exchanges(workload: Workload, plan: Plan) -> Workload:
    """Append the tensors that exchanges carry."""
    if not plan.has_own_messages:
        return workload
    trace = plan.trace
    step = {e.parameter: index for index, e in enumerate(trace.aggregation(trace.workers[0]))}
    number = {p.name: index for index, p in enumerate(trace.parameters)}
    names = [each.name for each in trace.layers]
    tensors, released = list(workload.tensors), list(workload.released)
    for each in plan.carried:
        first = min(number[name] for name in each.parameters)
        layer = names.index(trace.parameters[first].layer)
        last = max(step[name] for name in each.parameters)
        released[last] = (*released[last], len(tensors))
        tensors.append(Tensor(each.exchange.name, each.exchange.bytes, first, layer, first, each.exchange))
    errands = tuple(range(len(tensors), len(tensors) + len(plan.blocking)))
    tensors += [Tensor(exchange.name, exchange.bytes, 0, 0, 0, exchange) for exchange in plan.blocking]
    return replace(workload, tensors=tuple(tensors), released=tuple(released), errands=errands)


def _bucketed(workload: Workload, bucket_bytes: int) -> Workload:
    """Combine tensors in the order of their release, each group's by themselves; a bucket is released with its last
    tensor, and needed with its first layer.

    Source: Li et al. 2020, "PyTorch Distributed", section 3.2.3.
    """
    buckets: list[Tensor] = []
    released: list[tuple[int, ...]] = [()] * len(workload.released)
    for workers in dict.fromkeys(tensor.workers for tensor in workload.tensors):
        held: list[Tensor] = []
        held_bytes = 0
        steps = [
            (number, mine)
            for number, step in enumerate(workload.released)
            if (mine := [workload.tensors[t] for t in step if workload.tensors[t].workers == workers])
        ]
        for number, mine in steps:
            held += mine
            held_bytes += sum(tensor.bytes for tensor in mine)
            if held_bytes >= bucket_bytes or number == steps[-1][0]:
                released[number] = (*released[number], len(buckets))
                buckets.append(_together(held, len(buckets)))
                held, held_bytes = [], 0
    return Workload(tuple(buckets), workload.forward_ns, workload.backward_ns, tuple(released))


def in_parts(workload: Workload, parts: int, unit_bytes: int, collective: Collective | None = None) -> Workload:
    """Split tensors that the mechanism sums or gathers, so that they share links part by part, as their frames do.

    Args:
        parts: of a tensor, at most.
        unit_bytes: parts are multiples of this.
        collective: split those of this one only.
    """

    def part_bytes(tensor: Tensor) -> int:
        if tensor.exchange is not None or (collective is not None and tensor.collective is not collective):
            return max(tensor.bytes, 1)
        return max(-(-tensor.bytes // (parts * unit_bytes)), 1) * unit_bytes

    made: list[Tensor] = []
    places: list[tuple[int, ...]] = []
    for tensor in workload.tensors:
        size = part_bytes(tensor)
        first, sizes = len(made), [min(size, tensor.bytes - at) for at in range(0, tensor.bytes, size)] or [0]
        made += [replace(tensor, bytes=each, first_part=first if len(sizes) > 1 else None) for each in sizes]
        places.append(tuple(range(first, len(made))))
    released = tuple(tuple(place for old in step for place in places[old]) for step in workload.released)
    errands = tuple(place for old in workload.errands for place in places[old])
    gathers = tuple((place, asked, needed) for old, asked, needed in workload.gathers for place in places[old])
    return replace(workload, tensors=tuple(made), released=released, errands=errands, gathers=gathers)


def _in_chunks(workload: Workload, chunks: Sequence[Sequence[str]]) -> Workload:
    """Combine each chunk's tensors.

    A chunk is released with the last of its tensors and not before the previous chunk; tensors in no chunk follow.
    """
    step = {place: number for number, places in enumerate(workload.released) for place in places}
    of_name: dict[str, list[int]] = {}
    for place, tensor in enumerate(workload.tensors):
        of_name.setdefault(tensor.name, []).append(place)
    made: list[Tensor] = []
    released: list[list[int]] = [[] for _ in workload.released]
    last = 0
    for chunk in chunks:
        places = [place for name in chunk for place in of_name.pop(name, ())]
        if places:
            last = max(last, *(step[place] for place in places))
            released[last].append(len(made))
            made.append(_together([workload.tensors[place] for place in places], len(made)))
    for place in (place for places in of_name.values() for place in places):
        released[step[place]].append(len(made))
        made.append(workload.tensors[place])
    return replace(workload, tensors=tuple(made), released=tuple(map(tuple, released)))


def _together(tensors: list[Tensor], number: int) -> Tensor:
    """One bucket of some tensors."""
    total = sum(tensor.bytes for tensor in tensors)
    layer = min(tensor.layer for tensor in tensors)
    return Tensor(f"bucket{number}", total + -total % FLOAT_BYTES, number, layer, number, workers=tensors[0].workers)


def of_size(size_bytes: int, message_bytes: int = 0) -> Workload:
    """One tensor and no computing: a bare all-reduce."""
    return of_trace(trace_of_size(size_bytes), message_bytes)


def trace_of_size(size_bytes: int) -> Trace:
    """A trace of one tensor and no computing."""
    return synthesise([Layer("tensor", 0, 0)], [Parameter("tensor/values", max(1, size_bytes), "tensor")])


def _parts(size: int, at_most: int) -> list[int]:
    """Sizes of a tensor's messages: as even as whole elements allow."""
    unit = 4 if size % 4 == 0 else 1
    count = -(-size // max(unit, at_most - at_most % unit)) if at_most else 1
    small, larger = divmod(size // unit, count)
    return [unit * (small + (part < larger)) for part in range(count)]
