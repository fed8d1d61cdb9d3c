"""Symbolic execution of a schedule: does every worker end with what the collective promises, and can it deadlock?

Values are multisets of contributions. As on hosts, a send does not block and is complete when its receiver takes the
message; a piece does not change while it is being sent. So a receive takes its message, waits until all sends of that
piece are complete, and then adds or copies.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from hostlib.errors import ScheduleError
from hostlib.schedules.contract import block_of, ends_of
from hostlib.schedules.schedule import Aggregate, Multicast, Operation, Receive, Schedule, Send, describe, worker

Value = Counter[int]  # how often each rank's contribution is in it
UNDEFINED = -1  # in place of a rank: what a rank that gives nothing has in its memory


def check(schedule: Schedule) -> None:
    """Prove that a schedule does its collective (hostlib.schedules.contract): that every rank ends with every
    contribution that it is promised, exactly once, and that nothing waits for ever.

    Raises:
        ScheduleError: it is not; the message names the node and the piece.
    """
    workers = [worker(rank) for rank in range(schedule.world_size)]
    absent = [node for node in workers if node not in schedule.nodes]
    if absent:
        raise ScheduleError(f"{schedule.mechanism}: {absent[0]} has no operations")
    run = Execution(schedule)
    todo = {node: deque(operations) for node, operations in schedule.nodes.items()}
    while run.moved:
        run.moved = False
        for node, operations in todo.items():
            while operations and run.step(node, operations[0]):
                operations.popleft()
                run.moved = True
    for node, operations in todo.items():
        if operations:
            raise ScheduleError(f"{schedule.mechanism}: deadlock: {node} waits forever to {describe(operations[0])}")
    for (sender, receiver, piece), messages in run.wires.items():
        if messages:
            raise ScheduleError(f"{schedule.mechanism}: piece {piece} from {sender} is never received by {receiver}")
    for piece in range(schedule.pieces):
        givers, takers = _ends(schedule, piece)
        wanted = Counter(givers)
        for node in map(worker, takers):
            if run.values[node, piece] != wanted:
                raise ScheduleError(
                    f"{schedule.mechanism}: {node} ends with {_difference(run.values[node, piece], wanted)} "
                    f"in piece {piece}"
                )


def _ends(schedule: Schedule, piece: int) -> tuple[range, range]:
    """The ranks that give a piece, and those that take it. Raises ScheduleError: see block_of."""
    collective, n = schedule.collective, schedule.world_size
    try:
        return ends_of(collective, n, block_of(collective, n, schedule.pieces, piece), schedule.root)
    except ScheduleError as error:
        raise ScheduleError(f"{schedule.mechanism}: {error}") from error


@dataclass(slots=True)
class Execution:
    """State of the symbolic execution.

    Attributes:
        values: of each node's pieces.
        wires: messages by sender, receiver and piece.
        under_way: number of messages of a node's piece that have not been taken.
        taken: messages that a node has taken but may not use yet.
        moved: whether anything has happened.
    """

    schedule: Schedule
    values: dict[tuple[str, int], Value] = field(default_factory=lambda: defaultdict(Counter))
    wires: dict[tuple[str, str, int], deque[Value]] = field(default_factory=lambda: defaultdict(deque))
    under_way: Counter[tuple[str, int]] = field(default_factory=Counter)
    taken: dict[str, Value] = field(default_factory=dict)
    moved: bool = True

    def __post_init__(self) -> None:
        for piece in range(self.schedule.pieces):
            givers, _ = _ends(self.schedule, piece)
            for rank in range(self.schedule.world_size):
                self.values[worker(rank), piece] = Counter((rank if rank in givers else UNDEFINED,))

    def step(self, node: str, operation: Operation) -> bool:
        """Do one operation, or as much of it as is possible now; returns whether it is complete."""
        mine = node, operation.piece
        match operation:
            case Send(peer, _):
                self._send(node, (peer,), operation.piece)
            case Multicast(peers, _):
                self._send(node, peers, operation.piece)
            case Receive(peer, piece, reduce):
                if node not in self.taken and self.wires[peer, node, piece]:
                    self.taken[node] = self._take(peer, node, piece)
                    self.moved = True
                if node not in self.taken or self.under_way[mine]:
                    return False
                got = self.taken.pop(node)
                self.values[mine] = self.values[mine] + got if reduce else got
            case Aggregate(peers, piece):
                if not all(self.wires[peer, node, piece] for peer in peers):
                    return False
                self.values[mine] = sum((self._take(peer, node, piece) for peer in peers), Counter())
        return True

    def _send(self, node: str, peers: tuple[str, ...], piece: int) -> None:
        for peer in peers:
            self.wires[node, peer, piece].append(self.values[node, piece].copy())
            self.under_way[node, piece] += 1

    def _take(self, peer: str, node: str, piece: int) -> Value:
        self.under_way[peer, piece] -= 1
        return self.wires[peer, node, piece].popleft()


def _difference(have: Value, wanted: Value) -> str:
    lost, extra = wanted - have, have - wanted
    if lost:
        return f"the contribution of rank {min(lost)} missing"
    if UNDEFINED in extra:
        return "what was in its memory before added to contributions"
    if not wanted[min(extra)]:
        return f"the contribution of rank {min(extra)}, which does not belong there,"
    return f"the contribution of rank {min(extra)} added {have[min(extra)]} times"
