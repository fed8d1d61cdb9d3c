"""Execute one host's list of a schedule on a real tensor: pieces to and from its peers by messages, the switch's part
through the packet engine. What the switch only multicasts are words of a host's, which that host has summed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hostlib.checker import check
from hostlib.errors import ScheduleError
from hostlib.multicast import SwitchMulticast
from hostlib.outbox import Outbox
from hostlib.peers import Peers, Pending, settle
from hostlib.registry import Mechanism
from hostlib.schedule import (
    FabricUse,
    Operation,
    Receive,
    Schedule,
    Send,
    describe,
    is_host,
    piece_bounds,
    server,
    worker,
)

SEGMENT_BYTES = 1 << 20  # of a message: while one is added, the next come
SEGMENTS_AHEAD = 8  # at least so many are asked for before they are needed
HEADER_TAG = 1 << 20  # of what servers are told; pieces have the tags below
CHANNEL_TAGS = 2 * HEADER_TAG
DTYPES = (torch.float32, torch.int32)  # that travel
END = -1  # instead of a number of elements

Sending = dict[tuple[int, int], list[Pending]]  # by piece and segment


class Fabric(Protocol):
    """Sums pieces over all ranks in the switch, in place, in the order in which they are begun."""

    def begin(self, values: Tensor, average: bool) -> int: ...

    def finish(self, number: int) -> None: ...


@dataclass(slots=True)
class Started:
    """An all-reduce whose first operations are done.

    Attributes:
        operations: those that remain.
        under_way: fabric's number of each piece that was handed to it.
        streams: by piece, in which the switch multicasts it.
    """

    flat: Tensor
    pieces: list[Tensor]
    average: bool
    operations: deque[Operation]
    under_way: dict[int, int] = field(default_factory=dict)
    streams: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation on one segment of its piece; the fabric cuts pieces by itself."""

    operation: Operation
    segment: int
    part: Tensor


class Runtime:
    """One host of a mechanism's schedules, a tensor after the other: the same ones on every host.

    Args:
        host: a worker's rank, or world size + a server's number.
        peers: what point-to-point messages go by.
        fabric: what the switch's operations go to; None when the schedule has none, or it only multicasts:
        multicast: then they go there.
        channel: of the all-reduces numbered 0, 1, 2, ..., this one does those whose number modulo `channels` is this.

    Raises:
        ScheduleError: the mechanism is not an all-reduce, or cannot run here.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        world_size: int,
        host: int,
        peers: Peers,
        fabric: Fabric | None = None,
        channel: int = 0,
        channels: int = 1,
        multicast: SwitchMulticast | None = None,
    ) -> None:
        self._mechanism, self._world_size, self._host = mechanism, world_size, host
        self._peers, self._fabric, self._multicast, self._channel = peers, fabric, multicast, channel
        self._turn, self._channels, self._first_tag = channel, channels, channel * CHANNEL_TAGS
        schedule = mechanism.schedule(world_size)
        check(schedule)
        mechanism.require_hosts()
        if fabric is None and multicast is None and schedule.needs_fabric and host < world_size:
            raise ScheduleError(f"{mechanism.name} needs a switch")
        self.only_fabric = schedule.needs_fabric and schedule.fabric_use is not FabricUse.MULTICAST
        self._answered_by_server = schedule.fabric_use is FabricUse.TO_SERVER
        self._hosts = {worker(rank): rank for rank in range(world_size)}
        self._hosts |= {server(number): world_size + number for number in range(len(schedule.servers))}
        self._node = next(node for node, number in self._hosts.items() if number == host)
        # A server's go to all at the same time, so that no worker is behind the others.
        self._outbox = Outbox(peers) if host < world_size and peers.shares_link else None

    @property
    def servers(self) -> range:
        """The hosts that are servers of their own."""
        return range(self._world_size, len(self._hosts))

    def allreduce(self, tensor: Tensor, average: bool) -> None:
        """Sum (or average) a contiguous tensor over all ranks, in place."""
        self.finish(self.begin(tensor, average))

    def begin(self, tensor: Tensor, average: bool) -> Started:
        """Do the operations up to the first that might wait: later tensors' can follow before `finish`."""
        flat = tensor.view(-1)
        if flat.numel() == 0:
            return Started(flat, [], average, deque())
        schedule = self._mechanism.schedule(self._world_size, flat.nbytes, self._turn)
        self._turn += self._channels
        pieces = [flat[start:end] for start, end in piece_bounds(flat.numel(), schedule.pieces)]
        started = Started(flat, pieces, average, deque(schedule.nodes[self._node]))
        if self._multicast is not None:
            started.streams = self._streams(schedule)
        if self._fabric is not None:
            operations = started.operations
            while operations and isinstance(operations[0], Send) and not is_host(operations[0].peer):
                self._to_fabric(self._fabric, started, operations.popleft().piece)
        return started

    def finish(self, started: Started) -> None:
        """The remaining operations. All-reduces are finished in the order in which they were begun."""
        sending: Sending = defaultdict(list)
        if self._host == 0 and self.servers and not self.only_fabric and started.flat.numel() > 0:
            told = self._tell_servers(started.flat.numel(), DTYPES.index(started.flat.dtype))
            sending[HEADER_TAG, 0] = told
        multicasts = self._expect_multicasts(started)
        steps = list(self._steps(started))
        coming: deque[tuple[Pending, Tensor]] = deque()
        asked = 0
        most = segments_ahead(started.operations, 1 + max((step.segment for step in steps), default=0))
        for step in steps:
            # Asked for early: with Gloo a message leaves when its receiver has asked for it.
            while asked < len(steps) and len(coming) < most:
                coming.extend(self._ask(steps[asked]))
                asked += 1
            match step.operation:
                case Send(peer, piece) if self._by_message(peer):
                    message = self._send(step.part, self._hosts[peer], piece)
                    sending[piece, step.segment].append(message)
                case Receive(peer, piece, reduce) if self._by_message(peer):
                    message, got = coming.popleft()
                    # What is on its way must not change.
                    settle([*sending.pop((piece, step.segment), []), message])
                    step.part.add_(got) if reduce else step.part.copy_(got)
                case Send(_, piece) if self._fabric is not None:
                    self._to_fabric(self._fabric, started, piece)
                case Receive(_, piece, _) if self._fabric is not None:
                    self._fabric.finish(started.under_way[piece])
                case Send(_, piece) if self._multicast is not None:
                    self._multicast.send(started.streams[piece], step.part)
                case Receive(_, piece, _) if piece in multicasts:
                    multicasts.pop(piece).wait()
                case operation:
                    raise ScheduleError(f"{self._mechanism.name}: a host cannot {describe(operation)}")
        for messages in sending.values():
            settle(messages)
        if self._multicast is not None:
            self._multicast.complete()
        if started.average and not started.under_way:
            started.flat.div_(self._world_size)

    def _streams(self, schedule: Schedule) -> dict[int, int]:
        """By piece; a server has a stream for each channel, workers have one each."""
        servers = bool(self.servers)
        sources = schedule.multicast_sources
        return {piece: self._channel if servers else self._hosts[node] for piece, node in sources.items()}

    def _expect_multicasts(self, started: Started) -> dict[int, Pending]:
        """By piece, what is to come from the switch: asked for early, or its source would wait. It cannot be there before
        all that this host contributes to it has left."""
        if self._multicast is None:
            return {}
        comes = [
            operation.piece
            for operation in started.operations
            if isinstance(operation, Receive) and not is_host(operation.peer)
        ]
        return {
            piece: self._multicast.receive(started.streams[piece], started.pieces[piece])
            for piece in comes
            if started.pieces[piece].numel() > 0
        }

    def _by_message(self, peer: str) -> bool:
        """Else it is the fabric's: a server that has its sums from the switch is behind it."""
        return is_host(peer) and not self._answered_by_server

    def _steps(self, started: Started) -> Iterator[Step]:
        for together in in_turns(started.operations, self._host >= self._world_size):
            parts = [self._parts(started, operation) for operation in together]
            for segment, each in enumerate(zip(*parts, strict=True)):
                for operation, part in zip(together, each, strict=True):
                    yield Step(operation, segment, part)

    def _parts(self, started: Started, operation: Operation) -> tuple[Tensor, ...]:
        piece = started.pieces[operation.piece]
        if piece.numel() == 0:
            return ()
        whole = isinstance(operation, Send | Receive) and not self._by_message(operation.peer)
        return (piece,) if whole else _segments(piece)

    def _ask(self, step: Step) -> Iterator[tuple[Pending, Tensor]]:
        match step.operation:
            case Receive(peer, piece, _) if self._by_message(peer):
                into = torch.empty_like(step.part)
                yield self._receive(into, self._hosts[peer], piece), into

    def serve(self) -> None:
        """A server's all-reduces, one after the other, until all workers have closed their runtimes. Of those that the
        switch sums it is told nothing: hostlib/server.py answers packets, whatever tensors they are of."""
        header = torch.empty(2, dtype=torch.int64)
        while True:
            self._receive(header, 0, HEADER_TAG).wait()
            count, kind = header.tolist()
            if count == END:
                break
            self.allreduce(torch.empty(count, dtype=DTYPES[kind]), average=False)
        # What they share must not go before the last of them has everything.
        for rank in range(1, self._world_size):
            self._receive(header, rank, HEADER_TAG).wait()

    def close(self) -> None:
        """There will be no more from this worker."""
        settle(self._tell_servers(END, 0))
        if self._outbox is not None:
            self._outbox.close()

    def _tell_servers(self, count: int, kind: int) -> list[Pending]:
        header = torch.tensor([count, kind])
        return [self._send(header, host, HEADER_TAG) for host in self.servers]

    def _send(self, tensor: Tensor, host: int, tag: int) -> Pending:
        return (self._outbox or self._peers).send(tensor, host, self._first_tag + tag)

    def _receive(self, tensor: Tensor, host: int, tag: int) -> Pending:
        return self._peers.receive(tensor, host, self._first_tag + tag)

    @staticmethod
    def _to_fabric(fabric: Fabric, started: Started, number: int) -> None:
        if started.pieces[number].numel() > 0:
            started.under_way[number] = fabric.begin(started.pieces[number], started.average)


def in_turns(operations: Iterable[Operation], serves: bool) -> Iterator[list[Operation]]:
    """What goes segment by segment: a server receives a piece from several hosts, or else all but the first would wait
    with links of their own idle. Any other operation goes by itself: a worker that waits for two at a time may hold up
    those that one of them waits for."""
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


def segments_ahead(operations: Iterable[Operation], longest: int) -> int:
    """How many segments a host asks for before it needs them: two of each host that sends to it, and all of two
    operations. With less, hosts whose pieces are long could wait for each other in a circle.

    Args:
        longest: segments of the longest piece.
    """
    senders = {operation.peer for operation in operations if isinstance(operation, Receive)}
    return max(SEGMENTS_AHEAD, 2 * len(senders), 2 * longest)


def _segments(piece: Tensor) -> tuple[Tensor, ...]:
    return piece.split(max(1, SEGMENT_BYTES // piece.element_size()))
