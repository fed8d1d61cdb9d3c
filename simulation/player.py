"""A schedule in virtual time over a star: every worker has one full-duplex link to the switch.

Messages of one direction of a link go one after the other. The switch is cut-through: a receiver's link starts with the
sender's, if it is free, and ends no earlier. Aggregation in the fabric streams as well, or stores a whole piece first.

Source: "How to Train your DNN", section 5; the link rules as in its toy example of figure 2.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from hostlib.schedule import SWITCH, Aggregate, Multicast, Receive, Schedule, Send, piece_bounds
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Star:
    """The network: link bandwidth in bits/s each way, one-way latency worker to worker in nanoseconds."""

    bandwidth_bits_s: float
    latency_ns: int = 0
    store_and_forward: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it.

    Attributes:
        time_ns: until the last worker has everything.
        link_bytes: worker -> (sent, received).
    """

    time_ns: int
    link_bytes: dict[str, tuple[int, int]]
    events: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A piece arriving: its first and its last bit, in nanoseconds."""

    start: float
    end: float


@dataclass(slots=True)
class Player:
    """Plays one schedule once. `size_bytes` is the whole tensor."""

    schedule: Schedule
    size_bytes: int
    star: Star
    _clock: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _up_free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _down_free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _arrived: dict[tuple[str, str, int], deque[Stream]] = field(default_factory=lambda: defaultdict(deque))
    _held: dict[int, Stream] = field(default_factory=dict)
    _bytes: dict[str, list[int]] = field(default_factory=dict)

    def play(self) -> Played:
        """Run to the end.

        Raises:
            SimulationError: the schedule waits for what never comes.
        """
        sizes = [end - start for start, end in piece_bounds(self.size_bytes, self.schedule.pieces)]
        todo = {node: deque(operations) for node, operations in self.schedule.nodes.items()}
        self._bytes = {node: [0, 0] for node in todo if node != SWITCH}
        leaving: list[tuple[float, int, str, str, int, Stream | None]] = []
        events = 0

        def advance(node: str) -> None:
            nonlocal events
            while todo[node]:
                match todo[node][0]:
                    case Send(peer, piece):
                        heapq.heappush(leaving, (self._clock[node], events, node, peer, piece, None))
                    case Multicast(peers, piece):
                        stream = self._held[piece]
                        for peer in peers:
                            events += 1
                            heapq.heappush(leaving, (stream.start, events, node, peer, piece, stream))
                    case operation:
                        if not self._wait(node, operation):
                            return
                todo[node].popleft()
                events += 1

        for node in todo:
            advance(node)
        while leaving:
            at, _, sender, receiver, piece, stream = heapq.heappop(leaving)
            self._carry(at, sender, receiver, piece, sizes[piece], stream)
            events += 1
            advance(receiver)
        stuck = next((node for node, operations in todo.items() if operations), None)
        if stuck is not None:
            raise SimulationError(f"{self.schedule.mechanism}: {stuck} waits for ever")
        return Played(
            round(max(self._clock[node] for node in self._bytes)),
            {node: (sent, received) for node, (sent, received) in self._bytes.items()},
            events,
        )

    def _carry(self, at: float, sender: str, receiver: str, piece: int, size: int, stream: Stream | None) -> None:
        duration = size * 8e9 / self.star.bandwidth_bits_s
        if stream is None:
            start = max(at, self._up_free[sender])
            stream = Stream(start, start + duration)
            self._up_free[sender] = stream.end
            self._bytes[sender][0] += size
        if receiver != SWITCH:
            start = max(stream.start, self._down_free[receiver])
            stream = Stream(start, max(stream.end, start + duration))
            self._down_free[receiver] = stream.end
            self._bytes[receiver][1] += size
            stream = Stream(stream.start + self.star.latency_ns, stream.end + self.star.latency_ns)
        self._arrived[sender, receiver, piece].append(stream)

    def _wait(self, node: str, operation: Receive | Aggregate) -> bool:
        """Take what an operation waits for, if it is all there."""
        peers = operation.peers if isinstance(operation, Aggregate) else (operation.peer,)
        if not all(self._arrived[peer, node, operation.piece] for peer in peers):
            return False
        streams = [self._arrived[peer, node, operation.piece].popleft() for peer in peers]
        whole = Stream(max(s.start for s in streams), max(s.end for s in streams))
        if isinstance(operation, Aggregate):
            self._held[operation.piece] = Stream(whole.end, whole.end) if self.star.store_and_forward else whole
        else:
            self._clock[node] = max(self._clock[node], whole.end)
        return True
