"""Execute one worker's list of a schedule on a real tensor: pieces to and from peers over Gloo, the switch's part
through the packet engine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from hostlib.errors import ScheduleError
from hostlib.schedule import SWITCH, Receive, Schedule, Send, describe, piece_bounds, worker


class Fabric(Protocol):
    """Sums pieces over all ranks in the switch, in place, in the order in which they are begun."""

    def begin(self, values: Tensor, average: bool) -> int: ...

    def finish(self, number: int) -> None: ...


@dataclass(slots=True)
class Started:
    """An all-reduce whose first operations are done.

    Attributes:
        under_way: fabric's number of each piece that was handed to it.
        next: index of the first operation that remains.
    """

    flat: Tensor
    pieces: list[Tensor]
    average: bool
    under_way: dict[int, int] = field(default_factory=dict)
    next: int = 0


class Runtime:
    """One worker of one schedule.

    Args:
        peers: a process group for point-to-point messages (torch.distributed.ProcessGroupGloo).
        fabric: what the switch's operations go to; None when the schedule has none.
    """

    def __init__(self, schedule: Schedule, rank: int, peers: Any, fabric: Fabric | None) -> None:
        self._schedule = schedule
        self._operations = schedule.nodes[worker(rank)]
        self._ranks = {worker(r): r for r in range(schedule.world_size)}
        self._peers = peers
        self._fabric = fabric
        if fabric is None and SWITCH in schedule.nodes:
            raise ScheduleError(f"{schedule.mechanism} needs a switch")

    @property
    def only_fabric(self) -> bool:
        """Whether all that a worker sends and receives goes through the switch."""
        return all(isinstance(op, Send | Receive) and op.peer == SWITCH for op in self._operations)

    def allreduce(self, tensor: Tensor, average: bool) -> None:
        """Sum (or average) a contiguous tensor over all ranks, in place."""
        self.finish(self.begin(tensor, average))

    def begin(self, tensor: Tensor, average: bool) -> Started:
        """Do the operations up to the first that might wait: later tensors' can follow before `finish`."""
        flat = tensor.view(-1)
        pieces = [flat[start:end] for start, end in piece_bounds(flat.numel(), self._schedule.pieces)]
        started = Started(flat, pieces, average)
        for operation in self._operations:
            if not (isinstance(operation, Send) and operation.peer == SWITCH and self._fabric is not None):
                break
            self._to_fabric(self._fabric, started, operation.piece)
            started.next += 1
        return started

    def finish(self, started: Started) -> None:
        """The remaining operations. All-reduces are finished in the order in which they were begun."""
        sending: dict[int, list[Any]] = defaultdict(list)
        for operation in self._operations[started.next :]:
            piece = started.pieces[operation.piece]
            if piece.numel() == 0:
                continue
            match operation:
                case Send(peer, number) if peer == SWITCH and self._fabric is not None:
                    self._to_fabric(self._fabric, started, number)
                case Receive(peer, number, _) if peer == SWITCH and self._fabric is not None:
                    self._fabric.finish(started.under_way[number])
                case Send(peer, number):
                    sending[number].append(self._peers.send([piece], self._ranks[peer], number))
                case Receive(peer, number, reduce):
                    for work in sending.pop(number, []):
                        work.wait()  # What is on its way must not change.
                    self._receive(piece, self._ranks[peer], number, reduce)
                case _:
                    raise ScheduleError(f"{self._schedule.mechanism}: a worker cannot {describe(operation)}")
        for works in sending.values():
            for work in works:
                work.wait()
        if started.average and not started.under_way:
            started.flat.div_(self._schedule.world_size)

    @staticmethod
    def _to_fabric(fabric: Fabric, started: Started, number: int) -> None:
        if started.pieces[number].numel() > 0:
            started.under_way[number] = fabric.begin(started.pieces[number], started.average)

    def _receive(self, piece: Tensor, source: int, tag: int, reduce: bool) -> None:
        into = torch.empty_like(piece) if reduce else piece
        self._peers.recv([into], source, tag).wait()
        if reduce:
            piece.add_(into)
