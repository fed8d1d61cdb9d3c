"""A rank's tensor in pieces: those of an all-to-all are of all ranks' tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hostlib.collectives.tensor_pieces import tensor_pieces
from hostlib.mechanisms.mechanism import find
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Receive, Schedule, Send, worker


def halved(n: int) -> Schedule:
    """An all-to-all in which every block is two pieces."""
    nodes = {
        worker(rank): tuple(
            operation
            for other in range(n)
            if other != rank
            for half in (0, 1)
            for operation in (
                Send(worker(other), 2 * (rank * n + other) + half),
                Receive(worker(other), 2 * (other * n + rank) + half, reduce=False),
            )
        )
        for rank in range(n)
    }
    return Schedule("halved", n, 2 * n * n, nodes, collective=Collective.ALL_TO_ALL)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_block_that_comes_to_its_place_does_not_change_what_leaves(n: int, size: int) -> None:
    schedule = halved(n)
    tensors = [torch.arange(n * size) + 1000 * rank for rank in range(n)]
    wanted = [torch.cat([each.view(n, size)[rank] for each in tensors]) for rank in range(n)]
    pieces = [tensor_pieces(schedule, schedule.nodes[worker(rank)], rank, tensors[rank]) for rank in range(n)]
    for source in range(n):
        for operation in schedule.nodes[worker(source)]:
            if isinstance(operation, Send):
                destination = int(operation.peer.removeprefix("worker"))
                pieces[destination][operation.piece].copy_(pieces[source][operation.piece])
    for mine, all_of_mine in zip(tensors, wanted, strict=True):
        assert torch.equal(mine, all_of_mine)


@pytest.mark.parametrize(("name", "passed_on"), [("butterfly", 0), ("ring", 3 * 2 // 2), ("halving-doubling", 1)])
def test_memory_is_taken_for_what_a_rank_passes_on_alone(name: str, passed_on: int) -> None:
    """Of 4 ranks' blocks, each with 5 elements: the given and the taken have places, and one block is both."""
    schedule = find(name).of(Collective.ALL_TO_ALL).schedule(4)
    pieces = tensor_pieces(schedule, schedule.nodes[worker(2)], 2, torch.zeros(20))
    assert sum(piece.numel() for piece in pieces) == 5 * (2 * 4 - 1 + passed_on)


def test_other_collectives_take_place_in_the_tensor_itself() -> None:
    schedule, tensor = find("ring").of(Collective.REDUCE).schedule(3), torch.zeros(100)
    pieces = tensor_pieces(replace(schedule, root=1), schedule.nodes[worker(0)], 0, tensor)
    for piece in pieces:
        piece.fill_(1)
    assert len(pieces) == schedule.pieces and tensor.sum() == 100
