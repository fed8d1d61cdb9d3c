"""Cut a rank's tensor into the pieces of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hostlib.schedules.contract import Collective, block_of
from hostlib.schedules.schedule import Operation, Schedule, bounds_of


def tensor_pieces(schedule: Schedule, operations: Sequence[Operation], rank: int, tensor: Tensor) -> list[Tensor]:
    """Pieces in which a collective takes place; together they leave its result in the tensor.

    Args:
        operations: those of the rank's own that it does with the pieces.
        tensor: flat and contiguous; of an all-to-all, shards of equal size for each rank.
    """
    if schedule.collective is Collective.ALL_TO_ALL:
        return _blocks(schedule, operations, rank, tensor)
    return [tensor[start:end] for start, end in bounds_of(schedule, tensor.numel())]


def _blocks(schedule: Schedule, operations: Sequence[Operation], rank: int, tensor: Tensor) -> list[Tensor]:
    """Of the schedule's tensor, which is all ranks' tensors after each other, what this rank needs.

    What it gives is in a copy, since what it takes arrives in the same places. What it passes on is in memory of its own,
    and what it never has is empty.
    """
    n, elements = schedule.world_size, tensor.numel()
    size, given = elements // n, tensor.clone()
    touched = {operation.piece for operation in operations}
    pieces = []
    for piece, (start, end) in enumerate(bounds_of(schedule, n * elements)):
        source, destination = divmod(block_of(schedule.collective, n, schedule.pieces, piece), n)
        offset, length = start - (source * n + destination) * size, end - start
        if source == rank:
            pieces.append(given.narrow(0, destination * size + offset, length))
        elif destination == rank:
            pieces.append(tensor.narrow(0, source * size + offset, length))
        else:
            pieces.append(torch.empty(length if piece in touched else 0, dtype=tensor.dtype))
    return pieces
