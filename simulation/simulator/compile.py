"""Compile schedules to the kernel's tables: every message is matched with the operation that receives it.

In symmetric schedules one worker represents all (`reduced`): what it sends to the worker at distance d is what it
receives from the worker at distance -d. That is exact if pieces are equally large; otherwise every piece counts as the
largest, which is less than one element too many.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hostlib.schedules.schedule import (
    SWITCH,
    Aggregate,
    Compute,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    Symmetry,
    describe,
    image,
    is_host,
    worker,
)
from simulation.errors import SimulationError

SEND, RECEIVE, MULTICAST, COMPUTE = range(4)
ALL_RANKS = 64  # up to this many workers each one's list is compared with worker 0's; above, a sample


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schedule's tables.

    Attributes:
        names: of the nodes, workers first.
        begin: operations of node i are begin[i] .. begin[i + 1]; int32.
        ops: int32 (n, 10): kind, sums in the fabric, messages needed, piece, target, target's operation, first peer,
            peers, the receive whose stream continues, distance of the target.
        peers: of multicasts; int32 (n, 3): target, its operation, distance.
        durations_ns: of computing operations, whose target is an index into this array; int64.
    """

    pieces: int
    workers: int
    names: tuple[str, ...]
    begin: NDArray[np.int32]
    ops: NDArray[np.int32]
    peers: NDArray[np.int32]
    durations_ns: NDArray[np.int64]


def compile_schedule(schedule: Schedule) -> Compiled:
    """Compile all nodes' operations.

    Raises:
        SimulationError: a message is never received.
    """
    workers = [worker(rank) for rank in range(schedule.world_size)]
    number = {name: index for index, name in enumerate(dict.fromkeys((*workers, *schedule.nodes)))}
    names = tuple(number)
    lists = [schedule.nodes[name] for name in names]
    receives: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    begin = [0]
    for node, operations in enumerate(lists):
        for index, operation in enumerate(operations, start=begin[-1]):
            for peer in _sources(operation):
                receives[number[peer], node, operation.piece].append(index)
        begin.append(begin[-1] + len(operations))

    def matched(source: int, target: int, operation: Operation) -> int:
        waiting = receives.get((source, target, operation.piece))
        if not waiting:
            raise SimulationError(
                f"{schedule.mechanism}: {names[source]} has to {describe(operation)}, which never receives it"
            )
        return waiting.popleft()

    ops: list[tuple[int, ...]] = []
    peers: list[tuple[int, int, int]] = []
    durations_ns: list[int] = []
    n = len(names)
    for node, operations in enumerate(lists):
        streams: dict[int, int] = {}
        for operation in operations:
            source = streams.get(operation.piece, -1)
            match operation:
                case Send(peer, piece):
                    target = number[peer]
                    ops.append((SEND, 0, 0, piece, target, matched(node, target, operation), 0, 0, source,
                                _distance(schedule, node, target, n)))  # fmt: skip
                case Multicast(to, piece):
                    ops.append((MULTICAST, 0, 0, piece, -1, -1, len(peers), len(to), source, 0))
                    for peer in to:
                        target = number[peer]
                        peers.append((target, matched(node, target, operation), _distance(schedule, node, target, n)))
                case Compute(piece, duration_ns):
                    ops.append((COMPUTE, 0, 0, piece, len(durations_ns), -1, 0, 0, -1, 0))
                    durations_ns.append(duration_ns)
                case _:
                    if node >= len(workers):
                        streams[operation.piece] = len(ops)
                    needed = len(operation.peers) if isinstance(operation, Aggregate) else 1
                    ops.append(
                        (RECEIVE, int(isinstance(operation, Aggregate)), needed, operation.piece, -1, -1, 0, 0, -1, 0)
                    )
    durations = np.array(durations_ns, np.int64)
    return Compiled(schedule.pieces, len(workers), names, _table(begin), _table(ops, 10), _table(peers, 3), durations)


def _sources(operation: Operation) -> Iterable[str]:
    match operation:
        case Receive(peer, _, _):
            return (peer,)
        case Aggregate(peers, _):
            return peers
    return ()


def _distance(schedule: Schedule, source: int, target: int, n: int) -> int:
    """Distance of a target from its source: the same for all workers of a symmetric schedule."""
    return source ^ target if schedule.symmetry is Symmetry.XOR else (source - target) % n


def _table(rows: Sequence[Sequence[int] | int], columns: int = 0) -> NDArray[np.int32]:
    made = np.array(rows, np.int32)
    return made.reshape(-1, columns) if columns else made


def in_group(compiled: Compiled, members: Sequence[int], workers: int) -> Compiled:
    """The same schedule done by some workers of a larger world, in which all others do nothing.

    Args:
        members: the rank in the world of each of the schedule's workers, ascending.
        workers: of the world.
    """
    assert list(members) == sorted(members), "operations keep their places"
    others = compiled.names[compiled.workers :]
    place = np.array([*members, *range(workers, workers + len(others))], np.int32)
    counts = np.zeros(workers + len(others), np.int32)
    counts[place] = np.diff(compiled.begin)
    begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    nodes = np.repeat(np.arange(len(counts)), counts)
    ops, peers = compiled.ops.copy(), compiled.peers.copy()
    sends, multicasts = ops[:, 0] == SEND, ops[:, 0] == MULTICAST
    ops[sends, 4] = place[ops[sends, 4]]
    ops[sends, 9] = (nodes[sends] - ops[sends, 4]) % len(counts)
    peers[:, 0] = place[peers[:, 0]]
    peers[:, 2] = (np.repeat(nodes[multicasts], ops[multicasts, 7]) - peers[:, 0]) % len(counts)
    names = (*map(worker, range(workers)), *others)
    return replace(compiled, workers=workers, names=names, begin=begin, ops=ops, peers=peers)


# ---- symmetry ------------------------------------------------------------------------------------------------------


def reduced(schedule: Schedule) -> Compiled | None:
    """Tables of worker 0 alone, which represents all workers; None if the schedule is not symmetric.

    Verified: every worker's list (a sample of eight above 64 workers) is compared with the image of worker 0's.
    """
    n = schedule.world_size
    folded = _without_relay(schedule)
    if n < 2 or folded.symmetry is Symmetry.NONE:
        return None
    mine = folded.nodes[worker(0)]
    others = range(1, n) if n <= ALL_RANKS else sorted({1, 2, 3, n // 3, n // 2, n - 3, n - 2, n - 1})
    for rank in others:
        if _canonical(folded, rank) != [_image(folded, op, rank) for op in _canonical(folded, 0)]:
            return None
    receives: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for index, operation in enumerate(mine):
        if isinstance(operation, Receive):
            receives[_rank(operation.peer), operation.piece].append(index)

    def matched(peer: str, piece: int) -> tuple[int, int]:
        """(distance, the operation with which worker 0 receives its equivalent from the opposite distance)"""
        rank = _rank(peer)
        if folded.symmetry is Symmetry.XOR:
            return rank, receives[rank, (piece ^ rank) if folded.pieces > 1 else 0].popleft()
        return -rank % n, receives[-rank % n, (piece - rank) % folded.pieces].popleft()

    ops: list[tuple[int, ...]] = []
    peers: list[tuple[int, int, int]] = []
    for operation in mine:
        match operation:
            case Send(peer, piece):
                distance, target_op = matched(peer, piece)
                ops.append((SEND, 0, 0, piece, 0, target_op, 0, 0, -1, distance))
            case Multicast(to, piece):
                ops.append((MULTICAST, 0, 0, piece, -1, -1, len(peers), len(to), -1, 0))
                for peer in to:
                    distance, target_op = matched(peer, piece)
                    peers.append((0, target_op, distance))
            case _:
                ops.append((RECEIVE, 0, 1, operation.piece, -1, -1, 0, 0, -1, 0))
    begin, nothing = _table([0, len(ops)]), np.empty(0, np.int64)
    return Compiled(schedule.pieces, 1, (worker(0),), begin, _table(ops, 10), _table(peers, 3), nothing)


def _rank(node: str) -> int:
    return int(node.removeprefix("worker"))


def _without_relay(schedule: Schedule) -> Schedule:
    """Replace a switch that only forwards one worker's pieces to the others by that worker's own multicast."""
    if schedule.symmetry is not Symmetry.NONE or set(filter(lambda node: not is_host(node), schedule.nodes)) != {
        SWITCH
    }:
        return schedule
    relayed: dict[int, tuple[str, tuple[str, ...]]] = {}
    operations = iter(schedule.nodes[SWITCH])
    for got in operations:
        passed = next(operations, None)
        if (
            not isinstance(got, Receive)
            or not isinstance(passed, Multicast)
            or got.piece != passed.piece
            or got.piece in relayed
            or not got.peer.startswith("worker")
        ):
            return schedule
        relayed[got.piece] = (got.peer, passed.peers)
    workers = [worker(rank) for rank in range(schedule.world_size)]
    if len(schedule.nodes) != len(workers) + 1:
        return schedule

    def own(operation: Operation) -> Operation:
        match operation:
            case Send(peer, piece) if peer == SWITCH:
                return Multicast(relayed[piece][1], piece)
            case Receive(peer, piece, reduce) if peer == SWITCH:
                return Receive(relayed[piece][0], piece, reduce)
        return operation

    class Folded(dict[str, tuple[Operation, ...]]):
        def __missing__(self, node: str) -> tuple[Operation, ...]:
            self[node] = tuple(own(operation) for operation in schedule.nodes[node])
            return self[node]

    return replace(schedule, nodes=Folded(), symmetry=Symmetry.ROTATION)


def _image(schedule: Schedule, operation: Operation, rank: int) -> Operation:
    if not isinstance(operation, Multicast):
        return image(schedule, operation, rank)
    n = schedule.world_size
    there = sorted((_rank(peer) + rank) % n for peer in operation.peers)
    return Multicast(tuple(map(worker, there)), (operation.piece + rank) % schedule.pieces)


def _canonical(schedule: Schedule, rank: int) -> list[Operation]:
    """A worker's list with consecutive receives in a canonical order: nothing is sent between them."""
    out: list[Operation] = []
    run: list[Receive] = []
    n = schedule.world_size

    def place(operation: Receive) -> tuple[int, int]:
        if schedule.symmetry is Symmetry.XOR:
            return _rank(operation.peer) ^ rank, operation.piece ^ rank
        return (_rank(operation.peer) - rank) % n, (operation.piece - rank) % schedule.pieces

    for operation in schedule.nodes[worker(rank)]:
        if isinstance(operation, Receive):
            run.append(operation)
            continue
        out += [
            *sorted(run, key=place),
            _image(schedule, operation, 0) if isinstance(operation, Multicast) else operation,
        ]
        run = []
    return [*out, *sorted(run, key=place)]
