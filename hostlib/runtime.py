"""Execute one worker's list of a schedule on a real tensor: pieces to and from peers over Gloo, the switch's part
through the packet engine.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

import torch
from torch import Tensor

from hostlib.errors import ScheduleError
from hostlib.schedule import SWITCH, Receive, Schedule, Send, describe, piece_bounds, worker


class Fabric(Protocol):
    """Sums a piece over all ranks in the switch, in place."""

    def allreduce(self, piece: Tensor, average: bool) -> None: ...


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

    def allreduce(self, tensor: Tensor, average: bool) -> None:
        """Sum (or average) a contiguous tensor over all ranks, in place."""
        flat = tensor.view(-1)
        pieces = [flat[start:end] for start, end in piece_bounds(flat.numel(), self._schedule.pieces)]
        sending: dict[int, list[Any]] = defaultdict(list)
        in_fabric = False
        for operation in self._operations:
            piece = pieces[operation.piece]
            if piece.numel() == 0:
                continue
            match operation:
                case Send(peer, number) if peer == SWITCH:
                    in_fabric = True
                case Receive(peer, number, _) if peer == SWITCH and self._fabric is not None:
                    # The engine sends and receives in one call: a slot's next chunk is clocked by its last result.
                    self._fabric.allreduce(piece, average)
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
        if average and not in_fabric:
            flat.div_(self._schedule.world_size)

    def _receive(self, piece: Tensor, source: int, tag: int, reduce: bool) -> None:
        into = torch.empty_like(piece) if reduce else piece
        self._peers.recv([into], source, tag).wait()
        if reduce:
            piece.add_(into)
