"""Execute one host's operations of a schedule on real tensors.

Pieces go to and from peers as messages, the switch's sums through the packet engine. What the switch only multicasts is
a host's own sum.

Any schedule works: a mechanism's (hostlib/collectives/mechanism_executor.py), or a strategy's own messages, whose
pieces have sizes of their own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from hostlib.collectives.message_requests import Expected, MessageRequests, Request
from hostlib.errors import ScheduleError
from hostlib.schedules.schedule import Compute, Operation, Receive, Send, describe, is_host
from hostlib.schedules.segments import segments_ahead
from hostlib.transport.segment_length import SEGMENT_BYTES
from hostlib.transport.send_queue import SendQueue
from hostlib.transport.transport import MulticastTransport, Pending, Transport, settle


class SwitchSum(Protocol):
    """Sums pieces over all ranks in the switch, in place, in the order in which they are begun."""

    def begin(self, values: Tensor, average: bool) -> int: ...

    def finish(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on one segment of its piece; the switch segments pieces itself.

    Attributes:
        fresh: nothing has touched the segment yet, so a message may be received in place.
    """

    operation: Operation
    segment: int
    part: Tensor
    fresh: bool


@dataclass(slots=True)
class Playing:
    """A list of operations in progress.

    Attributes:
        streams: piece -> the stream in which the switch multicasts it.
        steps: the remaining ones.
        expected: messages to this host.
        sending: by piece and segment.
        in_switch: piece -> its number in the switch, for pieces handed to it.
        multicasts: piece -> its multicast, once requested.
    """

    pieces: Sequence[Tensor]
    average: bool
    streams: Mapping[int, int]
    steps: deque[Step]
    expected: Expected
    sending: dict[tuple[int, int], list[Pending]] = field(default_factory=lambda: defaultdict(list))
    in_switch: dict[int, int] = field(default_factory=dict)
    multicasts: dict[int, Pending] | None = None


class ScheduleExecutor:
    """One host's lists of operations, one after the other.

    Args:
        name: of the schedules, for errors.
        hosts: node -> number, for every node that is a host.
        transport: carries point-to-point messages.
        first_tag: tag of piece 0's messages; piece p's is first_tag + p.
        switch: executes the switch's sums; None if there are none.
        multicast: executes the switch's multicasts; None if there are none.
        server: this host is a server: it receives a piece from several hosts at a time.
        requests: of the messages to this host; a server's executors share them. None for this executor's own.
        in_turn: send to one host after the other.
        behind_switch: servers get their sums from the switch: no messages are exchanged with them.
        compute: occupies a piece for a number of ns; None if the schedules have no such operations.
        segment_bytes: of the messages; all hosts have the same.
    """

    def __init__(
        self,
        name: str,
        hosts: Mapping[str, int],
        transport: Transport,
        first_tag: int = 0,
        switch: SwitchSum | None = None,
        multicast: MulticastTransport | None = None,
        server: bool = False,
        requests: MessageRequests | None = None,
        in_turn: bool = False,
        behind_switch: bool = False,
        compute: Callable[[int], None] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._name, self._hosts, self._transport, self._first_tag = name, hosts, transport, first_tag
        self._switch, self._multicast, self._server = switch, multicast, server
        self._requests = MessageRequests() if requests is None else requests
        self._behind_switch, self._compute, self._segment_bytes = behind_switch, compute, segment_bytes
        self._queue = SendQueue(transport) if in_turn else None

    def begin(
        self,
        operations: Sequence[Operation],
        pieces: Sequence[Tensor],
        average: bool = False,
        streams: Mapping[int, int] | None = None,
        ahead: bool = False,
        number: int = 0,
    ) -> Playing:
        """Start the operations up to the first that might block: later lists may be begun before `finish`.

        Args:
            pieces: flat and contiguous.
            average: divide the switch's sums by the number of ranks.
            ahead: also send messages now and request all that are expected; only if no other list is in progress.
            number: of the list, among those whose requests are shared.
        """
        steps = list(self._steps(operations, pieces))
        longest = 1 + max((step.segment for step in steps), default=0)
        most = len(steps) if ahead else segments_ahead(operations, longest, self._server)
        expected = Expected(number, most, self._messages(steps))
        playing = Playing(pieces, average, streams or {}, deque(steps), expected)
        if ahead:
            self._expect(playing)
        while playing.steps and isinstance(playing.steps[0].operation, Send):
            if not ahead and (self._switch is None or self._by_message(playing.steps[0].operation.peer)):
                break
            self._do(playing)
        return playing

    def finish(self, playing: Playing) -> None:
        """Do the remaining operations. Lists are finished in the order in which they were begun.

        Raises:
            ScheduleError: an operation that a host cannot do.
            RunError, RuntimeError: a message did not come through.
        """
        self._expect(playing)
        try:
            while playing.steps:
                self._do(playing)
        finally:
            self._requests.end(playing.expected)
        for messages in playing.sending.values():
            settle(messages)
        if self._multicast is not None:
            self._multicast.complete()

    def _do(self, playing: Playing) -> None:
        step = playing.steps.popleft()
        match step.operation:
            case Send(peer, piece) if self._by_message(peer):
                way = self._queue or self._transport
                message = way.send(step.part, self._hosts[peer], self._first_tag + piece)
                playing.sending[piece, step.segment].append(message)
            case Receive(peer, piece, reduce) if self._by_message(peer):
                message, got = self._requests.take(playing.expected, self._line(peer))
                # A piece must not change while it is being sent.
                settle([*playing.sending.pop((piece, step.segment), []), message])
                self._requests.arrived(playing.expected, self._line(peer))
                if reduce:
                    step.part.add_(got)
                elif got is not step.part:
                    step.part.copy_(got)
            case Send(_, piece) if self._switch is not None:
                playing.in_switch[piece] = self._switch.begin(step.part, playing.average)
            case Receive(_, piece, _) if self._switch is not None:
                self._switch.finish(playing.in_switch[piece])
            case Send(_, piece) if self._multicast is not None:
                self._multicast.send(playing.streams[piece], step.part)
            case Receive(_, piece, _) if playing.multicasts and piece in playing.multicasts:
                playing.multicasts.pop(piece).wait()
            case Compute(_, duration_ns) if self._compute is not None:
                self._compute(duration_ns)
            case operation:
                raise ScheduleError(f"{self._name}: a host cannot {describe(operation)}")

    def _line(self, peer: str) -> str:
        """Whose requested messages are counted together: those of one sender if this is a server, else all."""
        return peer if self._server else ""

    def _messages(self, steps: Iterable[Step]) -> Iterator[tuple[str, Request]]:
        for step in steps:
            match step.operation:
                case Receive(peer) if self._by_message(peer):
                    yield self._line(peer), partial(self._request, step)

    def _request(self, step: Step) -> tuple[Pending, Tensor]:
        operation, part = step.operation, step.part
        assert isinstance(operation, Receive)
        into = part if step.fresh and not operation.reduce else torch.empty_like(part)
        tag = self._first_tag + operation.piece
        return self._transport.receive(into, self._hosts[operation.peer], tag), into

    def _expect(self, playing: Playing) -> None:
        """Request what the switch multicasts, so that its source need not wait. It cannot arrive before all of this
        host's contributions to it have left.
        """
        if playing.multicasts is not None:
            return
        playing.multicasts = {}
        if self._multicast is not None:
            for step in playing.steps:
                operation = step.operation
                if isinstance(operation, Receive) and not is_host(operation.peer):
                    stream = playing.streams[operation.piece]
                    playing.multicasts[operation.piece] = self._multicast.receive(stream, step.part)
        self._requests.begin(playing.expected)

    def _by_message(self, peer: str) -> bool:
        return is_host(peer) and not self._behind_switch

    def _steps(self, operations: Iterable[Operation], pieces: Sequence[Tensor]) -> Iterator[Step]:
        seen: set[int | tuple[int, int]] = set()  # pieces, and segments of pieces
        for together in in_turns(operations, self._server):
            parts = [self._parts(pieces[operation.piece], operation) for operation in together]
            for segment, each in enumerate(zip(*parts, strict=True)):
                for operation, part in zip(together, each, strict=True):
                    piece, whole = operation.piece, part is pieces[operation.piece]
                    yield Step(operation, segment, part, not seen & {piece, (piece, segment)})
                    seen.add(piece if whole else (piece, segment))

    def _parts(self, piece: Tensor, operation: Operation) -> tuple[Tensor, ...]:
        if piece.numel() == 0:
            return ()
        by_message = isinstance(operation, Send | Receive) and self._by_message(operation.peer)
        return self._segments(piece) if by_message else (piece,)

    def _segments(self, piece: Tensor) -> tuple[Tensor, ...]:
        segments: tuple[Tensor, ...] = piece.split(max(1, self._segment_bytes // piece.element_size()))
        return segments

    def close(self) -> None:
        """End: no more lists follow."""
        if self._queue is not None:
            self._queue.close()


def in_turns(operations: Iterable[Operation], serves: bool) -> Iterator[list[Operation]]:
    """Group the operations that are executed segment by segment.

    A server receives a piece from several hosts at once, or else all but the first would wait with idle links. Every
    other operation stands alone: a worker that waits for two peers at a time may hold up a peer that one of them waits
    for.
    """
    together: list[Operation] = []
    for operation in operations:
        if together and not (serves and _joins(operation, together)):
            yield together
            together = []
        together.append(operation)
    if together:
        yield together


def _joins(operation: Operation, together: list[Operation]) -> bool:
    return isinstance(operation, Receive) and all(
        isinstance(other, Receive) and other.piece == operation.piece and other.peer != operation.peer
        for other in together
    )
