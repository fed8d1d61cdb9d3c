"""Symbolic execution of a schedule: does every worker end with every contribution exactly once, and can it deadlock?

Values are multisets of contributions. Sends do not block, as the runtime's do not.
"""

from __future__ import annotations

from collections import Counter, deque

from hostlib.errors import ScheduleError
from hostlib.schedule import Aggregate, Multicast, Operation, Receive, Schedule, Send, describe, worker

Value = Counter[int]


def check(schedule: Schedule) -> None:
    """Prove that a schedule is an all-reduce.

    Raises:
        ScheduleError: it is not; the message names the node and the piece.
    """
    workers = [worker(rank) for rank in range(schedule.world_size)]
    absent = [node for node in workers if node not in schedule.nodes]
    if absent:
        raise ScheduleError(f"{schedule.mechanism}: {absent[0]} has no operations")
    values: dict[tuple[str, int], Value] = {
        (node, piece): Counter({rank: 1}) for rank, node in enumerate(workers) for piece in range(schedule.pieces)
    }
    wires: dict[tuple[str, str, int], deque[Value]] = {}
    todo = {node: deque(operations) for node, operations in schedule.nodes.items()}
    moved = True
    while moved:
        moved = False
        for node, operations in todo.items():
            while operations and _step(node, operations[0], values, wires):
                operations.popleft()
                moved = True
    for node, operations in todo.items():
        if operations:
            raise ScheduleError(f"{schedule.mechanism}: deadlock: {node} waits for ever to {describe(operations[0])}")
    for (sender, receiver, piece), messages in wires.items():
        if messages:
            raise ScheduleError(f"{schedule.mechanism}: piece {piece} from {sender} is never received by {receiver}")
    wanted = Counter(range(schedule.world_size))
    for node in workers:
        for piece in range(schedule.pieces):
            if values[node, piece] != wanted:
                raise ScheduleError(
                    f"{schedule.mechanism}: {node} ends with {_difference(values[node, piece], wanted)} "
                    f"in piece {piece}"
                )


def _step(
    node: str,
    operation: Operation,
    values: dict[tuple[str, int], Value],
    wires: dict[tuple[str, str, int], deque[Value]],
) -> bool:
    """Do one operation if it can be done now."""
    piece = operation.piece
    match operation:
        case Send(peer, _):
            wires.setdefault((node, peer, piece), deque()).append(values.get((node, piece), Counter()).copy())
        case Multicast(peers, _):
            for peer in peers:
                wires.setdefault((node, peer, piece), deque()).append(values.get((node, piece), Counter()).copy())
        case Receive(peer, _, reduce):
            waiting = wires.get((peer, node, piece))
            if not waiting:
                return False
            got = waiting.popleft()
            values[node, piece] = values.get((node, piece), Counter()) + got if reduce else got
        case Aggregate(peers, _):
            queues = [wires.get((peer, node, piece)) for peer in peers]
            if not all(queues):
                return False
            values[node, piece] = sum((queue.popleft() for queue in queues if queue), Counter())
    return True


def _difference(have: Value, wanted: Value) -> str:
    lost, extra = wanted - have, have - wanted
    if lost:
        return f"the contribution of rank {min(lost)} missing"
    return f"the contribution of rank {min(extra)} added {have[min(extra)]} times"
