"""One schedule in virtual time over a star, in plain Python: the oracle of the compiled kernel.

Shares no code with it: floating-point nanoseconds, one loop, a heap of departures.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field

from hostlib.schedules.schedule import Aggregate, Multicast, Receive, Schedule, Send, is_host, piece_bounds


@dataclass(frozen=True, slots=True)
class Stream:
    """A piece arriving: its first and its last bit, in nanoseconds."""

    start: float
    end: float


@dataclass(slots=True)
class PlainPlayer:
    """Plays one schedule once; the time is that of the last worker's last receive."""

    schedule: Schedule
    size_bytes: int
    bandwidth_bits_s: float
    store_and_aggregate: bool = False
    _clock: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _up_free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _down_free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _arrived: dict[tuple[str, str, int], deque[Stream]] = field(default_factory=lambda: defaultdict(deque))
    _held: dict[tuple[str, int], Stream] = field(default_factory=dict)

    def play(self) -> float:
        sizes = [end - start for start, end in piece_bounds(self.size_bytes, self.schedule.pieces)]
        todo = {node: deque(operations) for node, operations in self.schedule.nodes.items()}
        # (time, number, from, to, piece, its stream if it has one, on its way to the receiver's link)
        moving: list[tuple[float, int, str, str, int, Stream | None, bool]] = []
        count = 0

        def advance(node: str) -> None:
            nonlocal count
            while todo[node]:
                operation = todo[node][0]
                if isinstance(operation, Send | Multicast):
                    peers = (operation.peer,) if isinstance(operation, Send) else operation.peers
                    stream = None if is_host(node) else self._held[node, operation.piece]
                    for peer in peers:
                        count += 1
                        at = self._clock[node] if stream is None else stream.start
                        heapq.heappush(moving, (at, count, node, peer, operation.piece, stream, stream is not None))
                elif not self._wait(node, operation):
                    return
                todo[node].popleft()

        for node in todo:
            advance(node)
        while moving:
            at, _, sender, receiver, piece, stream, underway = heapq.heappop(moving)
            duration = sizes[piece] * 8e9 / self.bandwidth_bits_s
            if not underway:
                start = max(at, self._up_free[sender])
                self._up_free[sender] = start + duration
                count += 1
                heapq.heappush(moving, (start, count, sender, receiver, piece, Stream(start, start + duration), True))
                continue
            assert stream is not None
            if is_host(receiver):
                start = max(at, self._down_free[receiver])
                self._down_free[receiver] = start + duration
                stream = Stream(start, max(stream.end, start + duration))
            self._arrived[sender, receiver, piece].append(stream)
            advance(receiver)
        assert not any(todo.values())
        return max(self._clock[node] for node in todo if node.startswith("worker"))

    def _wait(self, node: str, operation: Receive | Aggregate) -> bool:
        peers = operation.peers if isinstance(operation, Aggregate) else (operation.peer,)
        if not all(self._arrived[peer, node, operation.piece] for peer in peers):
            return False
        streams = [self._arrived[peer, node, operation.piece].popleft() for peer in peers]
        whole = Stream(max(s.start for s in streams), max(s.end for s in streams))
        if is_host(node):
            self._clock[node] = max(self._clock[node], whole.end)
        elif isinstance(operation, Aggregate) and self.store_and_aggregate:
            self._held[node, operation.piece] = Stream(whole.end, whole.end)
        else:
            self._held[node, operation.piece] = whole
        return True
