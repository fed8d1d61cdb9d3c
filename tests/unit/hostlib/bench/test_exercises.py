"""What `hostlib bench` counts as wrong after a reduce and an all-to-all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hostlib.bench.exercises import exercise_of
from hostlib.bench.reproducible_tensors import BLOCK, drawn

SEED, N = 7, 3
COUNT = 3 * (BLOCK // 2 + 5)  # shards begin within blocks


def tensor_of(rank: int) -> Tensor:
    return torch.cat([block for _, block in drawn(SEED, rank, COUNT, torch.int32)])


class Ranks:
    """Rank `rank` of three, whose collectives are right but for `wrong` elements."""

    world_size = N

    def __init__(self, rank: int, wrong: int) -> None:
        self.rank, self.wrong = rank, wrong

    def _leave(self, tensor: Tensor, result: Tensor) -> torch.futures.Future[Tensor]:
        tensor.copy_(result)
        tensor[COUNT - self.wrong :] += 1
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(tensor)
        return future

    def reduce(self, tensor: Tensor, root: int, average: bool) -> torch.futures.Future[Tensor]:
        assert (root, average) == (0, False) and torch.equal(tensor, tensor_of(self.rank))
        return self._leave(
            tensor, sum(map(tensor_of, range(N)), torch.zeros_like(tensor)) if self.rank == 0 else tensor
        )

    def all_to_all(self, tensor: Tensor) -> torch.futures.Future[Tensor]:
        assert torch.equal(tensor, tensor_of(self.rank))
        return self._leave(tensor, torch.cat([tensor_of(each).view(N, -1)[self.rank] for each in range(N)]))


@pytest.mark.parametrize("wrong", [0, 1, COUNT // N + 1])
@pytest.mark.parametrize("rank", range(N))
@pytest.mark.parametrize("collective", ["reduce", "all_to_all"])
def test_wrong_elements_are_counted(collective: str, rank: int, wrong: int) -> None:
    ranks: Any = Ranks(rank, wrong)
    exercise = exercise_of(collective, ranks, ranks, tensor_of(rank), SEED, None)
    for _ in range(2):
        exercise.prepare()
        exercise.run()
        assert exercise.wrong() == wrong
    assert exercise.common is None
