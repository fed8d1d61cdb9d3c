"""Execute one host's part of a mechanism's schedules, tensor after tensor, in the same order on every host."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hostlib.collectives.message_requests import MessageRequests
from hostlib.collectives.schedule_executor import Playing, ScheduleExecutor, SwitchSum
from hostlib.collectives.tensor_pieces import tensor_pieces
from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.checker import check
from hostlib.schedules.schedule import FabricUse, Operation, Schedule, Send, Symmetry, server, worker
from hostlib.transport.segment_length import SEGMENT_BYTES
from hostlib.transport.transport import MulticastTransport, Pending, Transport, settle

HEADER_TAG = 1 << 20  # the tag of messages to servers; pieces have the tags below
CHANNEL_TAGS = 2 * HEADER_TAG
DTYPES = (torch.float32, torch.int32, torch.uint8)  # the dtypes of messages
END = -1  # sent instead of a number of elements
MOST_PARTS = 256  # schedules whose parts a host caches


@dataclass(frozen=True, slots=True)
class HostPart:
    """One host's part of a schedule.

    Attributes:
        schedule: says how the tensor is cut into pieces.
        streams: piece -> the stream in which the switch multicasts it.
    """

    schedule: Schedule
    operations: tuple[Operation, ...]
    streams: Mapping[int, int]


class MechanismExecutor:
    """One host's part in a mechanism's all-reduces, or another of its collectives.

    Args:
        host: a worker's rank, or world size + a server's number.
        transport: carries point-to-point messages.
        switch: executes the switch's sums; None if the schedule has none.
        multicast: executes the switch's multicasts of hosts' sums; None if the schedule has none.
        channel: of the all-reduces numbered 0, 1, 2, ..., this executor does those with number modulo `channels` ==
            channel.
        requests: of the messages to this host, which all its channels' executors share if it is a server.
        segment_bytes: see RankContext.

    Raises:
        ScheduleError: the mechanism does not do its collective, or cannot run here.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        world_size: int,
        host: int,
        transport: Transport,
        switch: SwitchSum | None = None,
        channel: int = 0,
        channels: int = 1,
        multicast: MulticastTransport | None = None,
        requests: MessageRequests | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._mechanism, self._world_size, self._host = mechanism, world_size, host
        self._multicast, self._channel = multicast, channel
        self._turn, self._channels = channel, channels
        schedule = mechanism.schedule(world_size)
        check(schedule)
        mechanism.require_hosts()
        if switch is None and multicast is None and schedule.needs_fabric and host < world_size:
            raise ScheduleError(f"{mechanism.name} needs a switch")
        self.only_fabric = schedule.needs_fabric and schedule.fabric_use is not FabricUse.MULTICAST
        self._hosts = {worker(rank): rank for rank in range(world_size)}
        self._hosts |= {server(number): world_size + number for number in range(len(schedule.servers))}
        self._transport, self._header_tag = transport, channel * CHANNEL_TAGS + HEADER_TAG
        self._told: deque[list[Pending]] = deque()  # messages to servers, of the all-reduces that are begun
        self._parts: dict[tuple[int, ...], HostPart] = {}  # in order of use, the latest last
        self._node = next(node for node, number in self._hosts.items() if number == host)
        self._executor = ScheduleExecutor(
            mechanism.name,
            self._hosts,
            transport,
            channel * CHANNEL_TAGS,
            switch,
            multicast,
            server=host >= world_size,
            requests=requests,
            # A server sends to all workers at the same time, so that no worker falls behind the others.
            in_turn=host < world_size and transport.shares_link and not _passes_on(schedule, self._node),
            behind_switch=schedule.fabric_use is FabricUse.TO_SERVER,
            segment_bytes=segment_bytes,
        )

    @property
    def servers(self) -> range:
        """The hosts that only serve."""
        return range(self._world_size, len(self._hosts))

    def allreduce(self, tensor: Tensor, average: bool) -> None:
        """Sum (or average) a contiguous tensor over all ranks, in place."""
        self.execute(tensor, average)

    def execute(self, tensor: Tensor, average: bool = False, root: int = 0) -> None:
        """Do the mechanism's collective with a contiguous tensor in place, on which each rank has its shard in its place.

        In an all-to-all each rank has a shard for every rank, and gets one of every rank in its place.

        Args:
            average: divide sums by the number of ranks.
            root: of a broadcast or reduce; a collective with servers has no other than 0.
        """
        self.finish(self.begin(tensor, average, root))

    def begin(self, tensor: Tensor, average: bool, root: int = 0) -> Playing:
        """Start the operations up to the first that might block: later tensors may be begun before `finish`."""
        flat = tensor.view(-1)
        if flat.numel() == 0:
            return self._executor.begin((), (), average)
        part = self._part(*self._mechanism.layout(self._world_size, flat.nbytes, self._turn), root)
        number, self._turn = self._turn, self._turn + self._channels
        pieces = tensor_pieces(part.schedule, part.operations, self._host, flat)
        if self._host == 0 and not self.only_fabric:
            self._told.append(self._tell_servers(flat.numel(), DTYPES.index(tensor.dtype)))
        return self._executor.begin(part.operations, pieces, average, part.streams, number=number)

    def finish(self, playing: Playing) -> None:
        """Do the remaining operations. All-reduces are finished in the order in which they were begun."""
        self._executor.finish(playing)
        if self._told and playing.pieces:
            settle(self._told.popleft())
        if playing.average and not playing.in_switch:
            for piece in playing.pieces:
                piece.div_(self._world_size)

    def _part(self, *layout: int) -> HostPart:
        """This host's part, built once for all tensors with the same layout and root."""
        part = self._parts.pop(layout, None)
        if part is None:
            schedule = self._mechanism.schedule(self._world_size, *layout)
            streams = self._streams(schedule) if self._multicast is not None else {}
            part = HostPart(schedule, tuple(schedule.nodes[self._node]), streams)
        self._parts[layout] = part
        if len(self._parts) > MOST_PARTS:
            del self._parts[next(iter(self._parts))]
        return part

    def _streams(self, schedule: Schedule) -> dict[int, int]:
        """Piece -> its stream: a server has a stream for each channel, a worker has one."""
        servers = bool(self.servers)
        sources = schedule.multicast_sources
        return {piece: self._channel if servers else self._hosts[node] for piece, node in sources.items()}

    def serve(self) -> None:
        """Do a server's all-reduces, one after the other, until all workers have closed their executors.

        All-reduces that the switch sums are not announced to a server: hostlib/fabric/aggregation_server.py answers
        packets, whatever tensors they belong to.
        """
        header = torch.empty(2, dtype=torch.int64)
        while True:
            self._hear(header, 0)
            count, kind = header.tolist()
            if count == END:
                break
            self.allreduce(torch.empty(count, dtype=DTYPES[kind]), average=False)
        # Shared resources must stay until the last worker has everything.
        for rank in range(1, self._world_size):
            self._hear(header, rank)

    def _hear(self, header: Tensor, rank: int) -> None:
        self._transport.control.receive(header, rank, self._header_tag).wait()

    def close(self) -> None:
        """Announce that this worker will start no more all-reduces."""
        settle(self._tell_servers(END, 0))
        self._executor.close()

    def _tell_servers(self, count: int, kind: int) -> list[Pending]:
        header = torch.tensor([count, kind])
        # Servers request a tensor when they know of it: all workers' tensors in the same order, if they know it early.
        return [self._transport.control.send(header, host, self._header_tag) for host in self.servers]


def _passes_on(schedule: Schedule, node: str) -> bool:
    """Whether each host always sends to one other host, as in a ring."""
    receivers = {operation.peer for operation in schedule.nodes[node] if isinstance(operation, Send)}
    return schedule.symmetry is Symmetry.ROTATION and len(receivers) == 1
