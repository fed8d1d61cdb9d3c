"""Simulate jobs on a network in virtual time.

The kernel (simulation/native/) executes every node's operations for every tensor, and every worker's layers. An
iteration of a mechanism with servers begins with their distribution, right after the barrier, and ends when all
gradients are summed at them. Of any other mechanism, it begins with the forward pass and ends when every worker has
every sum.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostlib.mechanisms.mechanism import Mechanism, registered
from hostlib.protocol.framing import PROGRESS
from hostlib.protocol.header import VALUE_BYTES
from hostlib.protocol.openings import Openings
from hostlib.protocol.slots import slots_of_stream
from hostlib.schedules.contract import Collective
from hostlib.schedules.hierarchy import spread
from hostlib.schedules.schedule import (
    SWITCH,
    FabricUse,
    Lists,
    Multicast,
    Operation,
    Schedule,
    Send,
    Symmetry,
    is_host,
    worker,
)
from hostlib.topology.topology import Topology
from simulation._kernel import Kernel
from simulation._kernel import job as kernel_job
from simulation._kernel import program as kernel_program
from simulation.errors import NetworkError, SimulationError
from simulation.simulator import host_link
from simulation.simulator.compile import COMPUTE, Compiled, compile_schedule, in_group, reduced
from simulation.simulator.network import PS_PER_NS, Network, Tree, round_trips, topology_of, tree
from simulation.simulator.workload import Variation, Workload

EVENTS_AT_A_TIME = 2_000_000  # between checks for Ctrl-C
REDUCE_ABOVE = 4_000_000  # operations; smaller simulations are executed in full
REQUESTS_PER_WINDOW = 2  # short frames with which a receiver of chunks lets their source fill its slots once
# Of servers that get their sums from the switch, packet by packet.
BEHIND_SWITCH = (FabricUse.TO_SERVER, FabricUse.VIA_SERVER)
FINER, FINE_PIECES = 16, 256  # parts of a piece, and all of them, at most, where chunks pass several switches
MAX_TENSORS, MAX_NODES = 1 << 20, 1 << 16  # limits of the kernel's keys


class Order(Enum):
    """Order in which servers distribute and, with PRIORITY, hosts send: by when the forward pass needs the tensors."""

    ROUND_ROBIN = "round-robin"
    BLOCK = "block"
    RANDOM = "random"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True)
class Job:
    """One training job, or one bare all-reduce.

    Attributes:
        iterations: to be simulated.
        barrier: a global barrier separates iterations; otherwise each worker continues as soon as it can.
        pipelined: a layer's forward pass waits for its own tensors only; None: yes with servers.
        bare: begins with the workers' gradients and ends with the sums at the workers, also with servers.
        channels: all-reduces that a worker has in progress, dealt out in turn; 0 for unlimited.
        reduce: whether one worker may represent all; None: if a full simulation would take long.
        hosts: numbers of its workers' and then its servers' hosts, which jobs may share; either all jobs have them or
            none. Empty: see play.
        host_ps_per_byte: time of a tensor's byte on the link between a host's GPUs, before the network and again after;
            0: a worker is one GPU. Otherwise it is a host of several, and iterations have a barrier.
    """

    workload: Workload
    mechanism: Mechanism
    workers: int
    iterations: int = 1
    barrier: bool = True
    pipelined: bool | None = None
    bare: bool = False
    order: Order = Order.ROUND_ROBIN
    variation: Variation = field(default_factory=Variation)
    channels: int = 0
    reduce: bool | None = None
    hosts: tuple[int, ...] = ()
    host_ps_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for name in ("workers", "iterations"):
            if not 1 <= getattr(self, name) < 2**31:
                raise SimulationError(f"{name} must be at least 1 and below 2^31, not {getattr(self, name)}")
        if self.mechanism.build is None and self.workload.summed:
            legal = ", ".join(name for name, each in registered().items() if each.build is not None)
            raise SimulationError(f"{self.mechanism.what} and has no schedule; legal are {legal}")
        if self.mechanism.same_host:
            raise SimulationError(
                f"{self.mechanism.name}: ranks that share a host are not simulated; legal is the same mechanism "
                "without same_host=shm, and a worker for each host, or several GPUs in each (--gpus-per-host)"
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one job.

    Attributes:
        iteration_end_ns: when each iteration ended; the first entry is the start.
        reduced_ns, delivered_ns: (iteration, tensor): when it was summed at the servers, when all workers had it.
        forward_end_ns, backward_end_ns: (iteration, worker).
    """

    iteration_end_ns: list[float]
    reduced_ns: list[list[float]]
    delivered_ns: list[list[float]]
    forward_end_ns: list[list[float]]
    backward_end_ns: list[list[float]]

    @property
    def iteration_s(self) -> float:
        """Time of one iteration: of the only one or, without a barrier, the mean of all but the first."""
        end = self.iteration_end_ns
        return (end[-1] - end[1]) / (len(end) - 2) / 1e9 if len(end) > 2 else end[-1] / 1e9


@dataclass(frozen=True, slots=True)
class Played:
    """Results of all jobs.

    Attributes:
        link_bytes: cable -> (sent, received), as its lower end sees it; of all iterations.
        stood_for: number of workers that each simulated worker represents.
        kernel_s, wall_s: time of the kernel, and in total.
    """

    outcomes: list[Outcome]
    link_bytes: dict[str, tuple[int, int]]
    events: int
    messages: int
    stood_for: int
    kernel_s: float
    wall_s: float


def operations(job: Job) -> int:
    """How many operations all its workers have in an iteration, about."""
    summed = job.workload.summed
    if not summed:
        return 0
    workers = len(summed[0].workers) or job.workers
    schedule = job.mechanism.schedule(workers, size=summed[0].bytes, turn=summed[0].turn)
    return len(schedule.nodes[worker(0)]) * workers * len(summed)


def play(network: Network, jobs: list[Job], apart: bool = False, with_bytes: bool = True) -> Played:
    """Simulate jobs to their end.

    Args:
        apart: jobs have hosts of their own, assigned in turn if all have as many workers, so that each job is in every
            rack; otherwise they share workers' and servers' hosts.
        with_bytes: give link_bytes, which takes a while where one worker represents all.

    Raises:
        SimulationError: a deadlock, or an impossible job.
        NetworkError: a schedule does not fit the network.
    """
    started = time.perf_counter()
    dealt = apart and len({job.workers for job in jobs}) == 1
    stride = len(jobs) if dealt else 1
    first_workers = [(i if dealt else sum(j.workers for j in jobs[:i])) if apart else 0 for i in range(len(jobs))]
    worker_count = sum(j.workers for j in jobs) if apart else max(j.workers for j in jobs)
    if jobs[0].hosts:
        worker_count = 1 + max(host for job in jobs for host in job.hosts)
    # Servers do not affect how switches are wired, so they can be counted after schedules are made.
    workers_topology = topology_of(network, worker_count, 0)
    compiled = [
        _programs(job, workers_topology, len(jobs) == 1, network.frame_bytes > 0, first, stride)
        for job, first in zip(jobs, first_workers, strict=True)
    ]
    servers_of = [
        1 + max((_number(n, "server") for each in made for n in each.compiled.names), default=-1)
        for made, _, _ in compiled
    ]
    firsts = [(first, sum(servers_of[:i]) if apart else 0) for i, first in enumerate(first_workers)]
    server_count = 0 if jobs[0].hosts else sum(servers_of) if apart else max(servers_of)
    topology = topology_of(network, worker_count, server_count)
    network_tree = tree(network, topology, worker_count, server_count)
    programs: list[Any] = []
    tensors: list[tuple[int, ...]] = []
    kernel_jobs: list[Any] = []
    for index, (job, (made, of_tensor, stand)) in enumerate(zip(jobs, compiled, strict=True)):
        base = len(programs)
        with_servers = any(each.distributes for each in made) and not job.bare

        def place(name: str, job: Job = job, first: tuple[int, int] = firsts[index]) -> int:
            if job.hosts:
                return _chosen(name, network_tree, job)
            return _place(name, network_tree, worker_count, first, stride)

        for each in made:
            nodes = [(place(name), int(each.distributes and name.startswith("server"))) for name in each.compiled.names]
            streams = network.frame_bytes > 0 and not with_servers and each.schedule.fabric_use in BEHIND_SWITCH
            programs.append(_kernel_program(each, np.array(nodes, np.int32), streams, job.variation))
        first_tensor = len(tensors)
        lanes = lanes_of(job.workload)
        for number, (tensor, which) in enumerate(zip(job.workload.tensors, of_tensor, strict=True)):
            elements, pieces = tensor.bytes // tensor.element_bytes, made[which].compiled.pieces
            if stand > 1:  # every piece counts as the largest
                elements = -(-elements // pieces) * pieces
            first = first_tensor + (number if tensor.first_part is None else tensor.first_part)
            tensors.append(
                (
                    index,
                    base + which,
                    elements,
                    tensor.element_bytes,
                    tensor.layer,
                    tensor.order,
                    first,
                    lanes[tensor.collective],
                )
            )
        servers = {name for each in made for name in each.compiled.names if name.startswith("server")}
        slots, trips = slots_of(job, network), np.empty(0, np.int64)
        asks = network.frame_bytes > 0 and job.mechanism.fabric_use is FabricUse.MULTICAST
        request_share = _request_share(network, slots) if slots and asks else 0.0
        if slots:
            trips = round_trips(
                network,
                network_tree,
                [place(worker(rank)) for rank in range(job.workers)],
                sorted(map(place, servers)),
                any(np.any(each.compiled.ops[:, 1]) for each in made),
            )
        kernel_jobs.append(
            _kernel_job(
                job,
                with_servers,
                stand,
                first_tensor,
                (
                    slots,
                    network.slot_bytes,
                    trips,
                    request_share,
                    network.frame_bytes > 0,
                    *_prologues(job, network, slots),
                ),
            )
        )
    if len(tensors) > MAX_TENSORS or len(network_tree.nodes) > MAX_NODES:
        raise SimulationError(f"at most {MAX_TENSORS} messages' tensors and {MAX_NODES} nodes can be played")
    kernel = Kernel(
        network_tree.ps_per_byte, network_tree.latency_ps, network_tree.loss, network_tree.nodes, programs,
        np.array(tensors, np.int64).reshape(-1, 8), kernel_jobs, network.overhead_ns * PS_PER_NS, network.store_and_forward,
        network.store_and_aggregate, network.turn_bytes, network.window_bytes,
        network.timeout_ns * PS_PER_NS,
    )  # fmt: skip
    running = time.perf_counter()
    while not kernel.run(EVENTS_AT_A_TIME):
        pass
    kernel_s = time.perf_counter() - running
    if stuck := kernel.stuck():
        j, t, node, _ = stuck[0]
        own = t - sum(len(job.workload.tensors) for job in jobs[:j])
        program = compiled[j][0][compiled[j][1][own]].compiled
        waits = f"{program.names[node]} waits forever for {jobs[j].workload.tensors[own].name}"
        raise SimulationError(f"{jobs[j].mechanism.name}: {waits}")
    result = kernel.results()
    played = [job.workers if compiled[index][2] == 1 else 1 for index, job in enumerate(jobs)]
    outcomes = [_gathered(_outcome(result, index, played[index]), job, played[index]) for index, job in enumerate(jobs)]
    stand = compiled[0][2] if len(jobs) == 1 else 1
    if stand > 1 and not with_bytes:
        link_bytes = {}
    elif stand > 1:
        link_bytes = _all_links(jobs[0], compiled[0])
    else:
        link_bytes = {}
        for (name, _), sent, received in zip(
            network_tree.link_names[::2], result["link_bytes"][::2], result["link_bytes"][1::2], strict=True
        ):
            link_bytes[name] = (sent, received)
    return Played(
        outcomes, link_bytes, result["events"], result["messages"], stand, kernel_s, time.perf_counter() - started
    )


# ---- schedules -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """A schedule for some of a job's tensors.

    Attributes:
        sizes: of its pieces, in bytes, if they are not equal parts of the tensor.
        distributes: one of its servers begins an iteration with what the previous one left.
        slowdown: computing takes so many times as long as the schedule has it.
        passes: what workers compute in it are their passes, which vary.
    """

    compiled: Compiled
    schedule: Schedule
    sizes: tuple[int, ...]
    distributes: bool
    slowdown: float = 1.0
    passes: bool = False


def _request_share(network: Network, slots: int) -> float:
    """Bytes with which a receiver of chunks lets their source go on, for each of chunks: headers, and a few words."""
    request = network.frame_bytes - network.slot_bytes + PROGRESS
    return request / network.frame_bytes / max(slots // REQUESTS_PER_WINDOW, 1)


Programs = tuple[list[Made], list[int], int]
KEPT, KEPT_OPERATIONS, KEPT_OPERATIONS_OF_ONE = 32, 500_000, 50_000  # at most; of all schedules of a job, and of one
Value = TypeVar("Value")


class Last(Generic[Value]):
    """The last values, by what they depend on: a cell is played many times with other rates and times."""

    def __init__(self) -> None:
        self._values: OrderedDict[Any, Value] = OrderedDict()
        self._lock = threading.Lock()  # not held while a value is made, which two threads may then do

    def get(self, key: Any, make: Callable[[], Value], small: Callable[[Value], bool] = lambda value: True) -> Value:
        """A key's value, which is made if it is not there, and kept if it is small."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        if small(value):
            with self._lock:
                self._values[key] = value
                if len(self._values) > KEPT:
                    self._values.popitem(last=False)
        return value


_programs_of_summed = Last[Programs]()
_one_worker = Last["Compiled | None"]()  # which represents all
_placed = Last[tuple[Schedule, Compiled]]()  # for other sets of tensors
_exchanges = Last[tuple[Schedule, Compiled]]()  # by the schedule's identity


@dataclass(frozen=True, slots=True)
class Where:
    """Where a job's ranks are in the network.

    Attributes:
        hosts: of its own, by rank; empty for the network's hosts `first + stride * r`.
        cables: between what; empty with one switch.
        frames: switches forward frame by frame.
    """

    hosts: tuple[int, ...]
    first: int
    stride: int
    switches: tuple[str, ...]
    cables: tuple[tuple[str, str], ...]
    frames: bool


def _programs(job: Job, topology: Topology, alone: bool, frames: bool, first: int = 0, stride: int = 1) -> Programs:
    """The distinct schedules of a job's tensors, each tensor's schedule, and how many workers one represents.

    Args:
        frames: switches forward frame by frame.
        first, stride: worker r is on the network's host `first + stride * r`, unless the job has hosts of its own.
    """
    workload, mechanism = job.workload, job.mechanism
    may = alone and job.reduce is not False and _all_alike(topology) and job.variation.is_none
    summed = workload.summed
    may = may and not job.hosts and len(workload.backward_ns) == 1 and len(summed) == len(workload.tensors)
    may = may and all(tensor.collective is None for tensor in summed)
    switches = tuple((cable.lower, cable.upper) for cable in topology.cables) if len(topology.switches) > 1 else ()
    tensors = tuple((tensor.bytes, tensor.turn, tensor.workers, tensor.collective) for tensor in summed)
    where = Where(job.hosts, first, stride, topology.switches, switches, frames)
    made, of_tensor, stand = _programs_of_summed.get(
        (mechanism.name, mechanism.build, job.workers, tensors, may, job.reduce, where),
        lambda: _of_summed(job, topology, may, where),
        lambda programs: sum(len(each.compiled.ops) for each in programs[0]) <= KEPT_OPERATIONS,
    )
    own = _of_exchanges(workload)
    return [*made, *own], [*of_tensor, *range(len(made), len(made) + len(own))], stand


def _of_summed(job: Job, topology: Topology, may: bool, where: Where) -> Programs:
    """Make what _programs returns of the tensors that the mechanism sums.

    Args:
        may: one worker may represent all, if the schedule allows it.
    """
    workload, mechanism, build = job.workload, job.mechanism, job.mechanism.build
    schedules: list[Schedule] = []
    groups: list[tuple[int, ...]] = []
    known: dict[Any, int] = {}
    alike: dict[Any, Schedule] = {}
    of_tensor = []
    summed = workload.summed
    for tensor in summed:
        # Schedules are lazy: making one is cheap, compiling one is not, so compile each distinct one once.
        group = tensor.workers
        workers = len(group) or job.workers
        does = mechanism if tensor.collective is None else mechanism.of(tensor.collective)
        key: Any = (does.layout(workers, tensor.bytes, tensor.turn), group, tensor.collective)
        if key not in known:
            schedule = does.schedule(workers, size=tensor.bytes, turn=tensor.turn)
            like = (tensor.collective, *_like(schedule, tensor.turn))
            if (like, group) not in known:
                known[like, group] = len(schedules)
                schedules.append(alike.setdefault(like, schedule))
                groups.append(group)
            known[key] = known[like, group]
        of_tensor.append(known[key])
    for schedule in schedules[:1]:
        _fits(schedule, topology)
    likes = {id(schedule): like for like, schedule in alike.items()}
    if may and (job.reduce or len(schedules[0].nodes[worker(0)]) * job.workers * len(of_tensor) > REDUCE_ABOVE):
        ones = [
            _one_worker.get((mechanism.name, build, each.world_size, likes[id(each)]), partial(reduced, each))
            for each in schedules
        ]
        if all(ones):
            made = [Made(p, s, (), False) for p, s in zip(ones, schedules, strict=True) if p is not None]
            return made, of_tensor, job.workers
    made = []
    compiled: dict[Any, tuple[Schedule, Compiled]] = {}  # also what is too large to be kept for another job
    for schedule, group in zip(schedules, groups, strict=True):
        place = (group, where) if len(topology.switches) > 1 else None
        key = (mechanism.name, build, schedule.world_size, likes[id(schedule)], place)
        if key not in compiled:
            compiled[key] = _placed.get(
                key,
                partial(_place_schedule, schedule, job, topology, group, where),
                lambda placed: len(placed[1].ops) <= KEPT_OPERATIONS_OF_ONE,
            )
        placed, program = compiled[key]
        program = in_group(program, group, job.workers) if group else program
        made.append(Made(program, placed, (), bool(placed.servers)))
    return made, of_tensor, 1


def _of_exchanges(workload: Workload) -> list[Made]:
    """One for each tensor that an exchange carries."""
    own = []
    for number, tensor in enumerate(workload.tensors):
        if (exchange := tensor.exchange) is not None:
            schedule, passes = exchange.schedule, number in workload.errands
            distributes = bool(schedule.servers) and not passes
            # The schedule is kept, too, so that no other one gets its identity.
            _, program = _exchanges.get(id(schedule), partial(_with_program, schedule))
            own.append(Made(program, schedule, exchange.sizes, distributes, exchange.slowdown, passes))
    return own


def _with_program(schedule: Schedule) -> tuple[Schedule, Compiled]:
    return schedule, compile_schedule(schedule)


def _kernel_program(made: Made, nodes: NDArray[np.int32], servers_stream: bool, variation: Variation) -> Any:
    c = made.compiled
    durations_ns = np.rint(c.durations_ns * made.slowdown).astype(np.int64)
    durations_ps = durations_ns * PS_PER_NS
    if made.passes and not variation.is_none and len(durations_ps):
        ranks = np.repeat(np.arange(len(c.names)), np.diff(c.begin))[c.ops[:, 0] == COMPUTE]
        vary = ranks < c.workers
        durations_ps[vary] = variation.operations_ps(durations_ns[vary], ranks[vary], salt=2)
    return kernel_program(
        c.pieces, c.workers, nodes, c.begin, c.ops, c.peers, list(made.sizes), durations_ps, servers_stream
    )


def _like(schedule: Schedule, turn: int) -> tuple[Any, ...]:
    """A key that is equal for two schedules of one mechanism and world size only if they are equal.

    With servers, workers' lists name the server of every piece. With a switch, or in symmetric schedules, one worker's
    list determines the rest. Otherwise the turn may select a rank.
    """
    alike = schedule.servers or schedule.needs_fabric or schedule.symmetry is not Symmetry.NONE
    rank = -1 if alike else turn % schedule.world_size
    return schedule.pieces, schedule.nodes[worker(0)], rank


def _place_schedule(
    schedule: Schedule, job: Job, topology: Topology, group: tuple[int, ...], where: Where
) -> tuple[Schedule, Compiled]:
    """Compile a schedule. Of a tree's switches each does its part of what one switch would, as the fabric does.

    Args:
        group: the ranks that do it; empty for all.
    """
    if len(topology.switches) > 1:
        numbers = where.hosts or range(where.first, where.first + where.stride * job.workers, where.stride)
        ranks = group or range(job.workers)
        switch_of = {worker(place): topology.switch_of(worker(numbers[rank])) for place, rank in enumerate(ranks)}
        schedule = spread(_finer(schedule, job) if where.frames else schedule, topology.tree, switch_of)
    return _with_program(schedule)


def _finer(schedule: Schedule, job: Job) -> Schedule:
    """The same with smaller pieces, if switches multicast hosts' chunks: behind a link that racks share, whole pieces
    would hold up others' messages, where chunks come between them.
    """
    times = min(FINER, FINE_PIECES // schedule.pieces)
    if job.mechanism.fabric_use is not FabricUse.MULTICAST or times <= 1:
        return schedule

    def parts(operation: Operation) -> Iterator[Operation]:
        for part in range(times):
            yield replace(operation, piece=operation.piece * times + part)

    def finer(node: str) -> Iterator[Operation]:
        if is_host(node):
            return chain.from_iterable(map(parts, schedule.nodes[node]))
        return chain.from_iterable(zip(*map(parts, schedule.nodes[node]), strict=True))  # all streams at a time

    lists = Lists({node: partial(finer, node) for node in schedule.nodes})
    return replace(schedule, pieces=schedule.pieces * times, nodes=lists)


def _all_alike(topology: Topology) -> bool:
    """Whether workers differ only in their numbers."""
    ways = {(cable.rate_bits_s, cable.delay_ns) for cable in topology.cables if cable.lower.startswith("worker")}
    return len(topology.switches) == 1 and len(ways) == 1


def _fits(schedule: Schedule, topology: Topology) -> None:
    switches = (SWITCH, *topology.switches)
    absent = next((name for name in schedule.nodes if not is_host(name) and name not in switches), None)
    if absent is not None:
        raise NetworkError(
            f"{schedule.mechanism} is for a network with a switch {absent}; this one has {', '.join(topology.switches)}"
        )


def _number(name: str, kind: str) -> int:
    return int(name.removeprefix(kind)) if name.startswith(kind) else -1


def _chosen(name: str, of: Tree, job: Job) -> int:
    """A node's index in the tree, if the job has hosts of its own."""
    if name.startswith("worker"):
        return of.hosts[job.hosts[_number(name, "worker")]]
    if name.startswith("server"):
        return of.hosts[job.hosts[job.workers + _number(name, "server")]]
    return of.switches[name]


def _place(name: str, of: Tree, workers: int, first: tuple[int, int], stride: int) -> int:
    """A node's index in the tree."""
    if name.startswith("worker"):
        return of.hosts[first[0] + stride * _number(name, "worker")]
    if name.startswith("server"):
        return of.hosts[workers + first[1] + _number(name, "server")]
    return of.switches[name]


def lanes_of(workload: Workload) -> dict[Collective | None, int]:
    """The kernel's lane of each collective: a worker does those of one kind one by one, different kinds at a time."""
    return {each: lane for lane, each in enumerate(dict.fromkeys([None, *(t.collective for t in workload.tensors)]))}


def slots_of(job: Job, network: Network) -> int:
    """How many slots a host has for what it sends to the fabric, in each stream of its own; 0 for any number.

    Raises:
        NetworkError: there are too many streams.
    """
    use = job.mechanism.fabric_use
    if not network.slots or not job.mechanism.needs_fabric:
        return 0
    if use not in (FabricUse.MULTICAST, FabricUse.TO_OWNERS):
        return network.slots
    workers = max((len(tensor.workers) or job.workers for tensor in job.workload.summed), default=job.workers)
    streams = max(job.channels, 1) if job.mechanism.servers else workers
    slots = slots_of_stream(streams, network.slots)
    if not slots:
        what = "streams of chunks" if use is FabricUse.MULTICAST else "owners of shards"
        raise NetworkError(f"{network.slots} slots are too few for {streams} {what}")
    return slots if use is FabricUse.MULTICAST else max(streams - 1, 1) * slots  # of all other owners


def _prologues(job: Job, network: Network, slots: int) -> tuple[int, int]:
    """How many of a sum's blocks prologues open, and how many each: docs/protocol.md, "Prologues"; (0, 0) for none."""
    use = job.mechanism.fabric_use
    if not slots or not network.frame_bytes or use is FabricUse.MULTICAST:
        return 0, 0
    opened = slots // max(job.workers - 1, 1) if use is FabricUse.TO_OWNERS else slots
    openings = Openings.of("float32", opened, opened, network.slot_bytes // VALUE_BYTES, job.workers)
    return openings.blocks, openings.each


def _kernel_job(
    job: Job,
    with_servers: bool,
    stand: int,
    first_tensor: int,
    frames: tuple[int, int, NDArray[np.int64], float, bool, int, int],
) -> Any:
    workload, workers = job.workload, 1 if stand > 1 else job.workers
    forward, backward = _durations(job, workers)
    if job.host_ps_per_byte:
        backward = host_link.delayed(backward, host_link.steps_ps(workload, job.host_ps_per_byte))
    return kernel_job(
        workers, job.iterations, with_servers, job.barrier,
        with_servers if job.pipelined is None else job.pipelined, job.channels,
        list(Order).index(job.order), job.variation.seed, forward, backward,
        [[first_tensor + t for t in step] for step in workload.released], [first_tensor + t for t in workload.errands],
        [[first_tensor + t for t in step] for step in workload.asked],
        [[first_tensor + t for t in step] for step in workload.awaited], *frames,
    )  # fmt: skip


def _durations(job: Job, workers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Picoseconds of each forward and backward step, (rows, steps): a row for all, or per iteration and worker."""
    means = job.workload.forward_ns.reshape(1, -1), job.workload.backward_ns
    durations = [job.variation.durations_ps(each, workers, job.iterations, salt) for salt, each in enumerate(means)]
    rows = max(map(len, durations))
    forward, backward = (np.ascontiguousarray(np.resize(d, (rows, d.shape[1]))) for d in durations)
    return forward, backward


# ---- results -------------------------------------------------------------------------------------------------------


def _outcome(result: dict[str, Any], j: int, workers: int) -> Outcome:
    def ns(values: list[int]) -> list[float]:
        return [value / PS_PER_NS for value in values]

    def by_worker(values: list[int]) -> list[list[float]]:
        return [ns(values[i : i + workers]) for i in range(0, len(values), workers)]

    return Outcome(
        ns(result["iteration_end_ps"][j]),
        [ns(row) for row in result["reduced_ps"][j]],
        [ns(row) for row in result["delivered_ps"][j]],
        by_worker(result["forward_end_ps"][j]),
        by_worker(result["backward_end_ps"][j]),
    )


def _gathered(outcome: Outcome, job: Job, workers: int) -> Outcome:
    """With all-gathers within hosts: each iteration ends with the last, and later ones begin as much later."""
    if not job.host_ps_per_byte or not job.workload.tensors:
        return outcome
    local_ps = host_link.steps_ps(job.workload, job.host_ps_per_byte)
    ready_ps = np.cumsum(_durations(job, workers)[1], axis=1)
    gather_ps = np.array([tensor.bytes * job.host_ps_per_byte for tensor in job.workload.tensors])
    ends = outcome.iteration_end_ns[:1]
    for number in range(1, len(outcome.iteration_end_ns)):
        rows = ready_ps[(number - 1) * workers : number * workers] if len(ready_ps) > 1 else ready_ps
        begins = np.array(outcome.forward_end_ns[number])[:, None] * float(PS_PER_NS) + rows.astype(float)
        delivered = np.array(outcome.delivered_ns[number]) * PS_PER_NS
        end_ns = host_link.last_gathered_ps(begins, local_ps, delivered, gather_ps) / PS_PER_NS
        later_ns = ends[-1] - outcome.iteration_end_ns[number - 1]
        ends.append(max(end_ns, outcome.iteration_end_ns[number]) + later_ns)
    return replace(outcome, iteration_end_ns=ends)


def _all_links(job: Job, compiled: Programs) -> dict[str, tuple[int, int]]:
    """Bytes of every worker's cable, from the schedule, if only one worker was simulated."""
    n = job.workers
    sent, received = np.zeros(n, np.int64), np.zeros(n, np.int64)
    ranks = np.arange(n)
    known: dict[tuple[int, int], tuple[Any, Any]] = {}
    for tensor, program in zip(job.workload.tensors, compiled[1], strict=True):
        schedule = compiled[0][program].schedule
        pieces = schedule.pieces
        small, larger = divmod(tensor.bytes // tensor.element_bytes, pieces)
        if (program, larger) not in known:
            out, into = np.zeros(pieces, np.int64), np.zeros(pieces, np.int64)
            for operation in schedule.nodes[worker(0)]:
                (out if isinstance(operation, Send | Multicast) else into)[operation.piece] += 1
            # Worker r's piece p is worker 0's, rotated: count the larger ones among them.
            index = np.arange(pieces)[:, None]
            turned = index ^ ranks if schedule.symmetry is Symmetry.XOR else (index + ranks) % pieces
            has = (turned if pieces > 1 else np.zeros((1, n), np.int64)) < larger
            known[program, larger] = (
                np.stack([np.full(n, out.sum()), out @ has]),
                np.stack([np.full(n, into.sum()), into @ has]),
            )
        for total, (count, extra) in zip((sent, received), known[program, larger], strict=True):
            total += tensor.element_bytes * (small * count + extra)
    runs = job.iterations
    return {worker(r): (int(sent[r]) * runs, int(received[r]) * runs) for r in range(n)}


def only(network: Network, job: Job) -> tuple[Outcome, Played]:
    """Simulate one job."""
    played = play(network, [job])
    return played.outcomes[0], played
