"""What a rank of `hostlib bench` does once: a collective of tensors that every rank can reproduce, and its check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hostlib.bench.bench_cells import BOTH
from hostlib.bench.reproducible_tensors import drawn, wrong_elements
from hostlib.collectives.collective import Collective
from hostlib.collectives.rank_collectives import RankCollectives
from hostlib.transport.rank_context import RankContext


class Exercise(Protocol):
    """One collective.

    Attributes:
        common: the result that must have the same bits on all ranks; None if each has its own.
    """

    @property
    def common(self) -> Tensor | None: ...

    def prepare(self) -> None:
        """Fill the tensors, which does not count."""
        ...

    def run(self) -> None: ...

    def wrong(self) -> int:
        """Elements of the latest result that are wrong."""
        ...


class AllReduce:
    """Sums a tensor in place; the other arguments are those of wrong_elements."""

    def __init__(
        self,
        collective: Collective,
        values: Tensor,
        where: torch.device,
        seed: int,
        ranks: int,
        sum_unit: float | None,
        groups: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._collective, self._values, self._checked = collective, values.to(where), (seed, ranks, sum_unit)
        self._groups = groups
        self._summed = torch.empty_like(self._values)

    @property
    def common(self) -> Tensor:
        """See Exercise."""
        return self._summed.cpu()

    def prepare(self) -> None:
        """See Exercise."""
        self._summed.copy_(self._values)
        self._finish()

    def run(self) -> None:
        """See Exercise."""
        self._collective.allreduce(self._summed, average=False).wait()
        self._finish()

    def _finish(self) -> None:
        """Wait for the device: what is queued there counts."""
        if self._summed.is_cuda:
            torch.cuda.synchronize()

    def wrong(self) -> int:
        """See Exercise."""
        return wrong_elements(self.common, *self._checked, groups=self._groups)


class ReduceScatter:
    """Sums a tensor, of which this rank gets its shard."""

    common = None

    def __init__(self, mine: RankCollectives, context: RankContext, values: Tensor, seed: int, sum_unit: float | None):
        self._mine, self._rank, self._values = mine, context.rank, values
        self._checked = seed, context.world_size, sum_unit
        self._shard = torch.empty(values.numel() // context.world_size, dtype=values.dtype)

    def prepare(self) -> None:
        """See Exercise."""
        self._shard.zero_()

    def begin(self) -> torch.futures.Future[Tensor]:
        """Start it."""
        return self._mine.reduce_scatter(self._shard, self._values, average=False)

    def run(self) -> None:
        """See Exercise."""
        self.begin().wait()

    def wrong(self) -> int:
        """See Exercise."""
        first = self._rank * self._shard.numel()
        return wrong_elements(self._shard, *self._checked, first, self._values.numel(), owner=self._rank)


class AllGather:
    """Gathers the beginning of each rank's tensor, a shard, on all ranks."""

    def __init__(self, mine: RankCollectives, context: RankContext, values: Tensor, seed: int) -> None:
        self._mine, self._seed, self._ranks = mine, seed, context.world_size
        size = values.numel() // context.world_size
        self._shard = values[:size]
        self._count = values.numel()
        self.common: Tensor = torch.empty(size * context.world_size, dtype=values.dtype)

    def prepare(self) -> None:
        """See Exercise."""
        self.common.zero_()

    def begin(self) -> torch.futures.Future[Tensor]:
        """Start it."""
        return self._mine.all_gather(self.common, self._shard)

    def run(self) -> None:
        """See Exercise."""
        self.begin().wait()

    def wrong(self) -> int:
        """See Exercise."""
        shards = self.common.view(self._ranks, -1)
        return sum(moved_wrong(shard, self._seed, rank, self._count) for rank, shard in enumerate(shards))


class Broadcast:
    """Gives all ranks rank 0's tensor."""

    def __init__(self, mine: RankCollectives, context: RankContext, values: Tensor, seed: int) -> None:
        self._mine, self._values, self._seed = mine, values, seed
        self._rank, self.common = context.rank, torch.empty_like(values)

    def prepare(self) -> None:
        """See Exercise."""
        self.common.copy_(self._values)

    def run(self) -> None:
        """See Exercise."""
        self._mine.broadcast(self.common, 0).wait()

    def wrong(self) -> int:
        """See Exercise."""
        return moved_wrong(self.common, self._seed, 0, self.common.numel())


class Reduce:
    """Sums a tensor on rank 0; the others' stay as they are."""

    common = None

    def __init__(self, mine: RankCollectives, context: RankContext, values: Tensor, seed: int, sum_unit: float | None):
        self._mine, self._rank, self._values = mine, context.rank, values
        self._checked = seed, context.world_size, sum_unit
        self._result = torch.empty_like(values)

    def prepare(self) -> None:
        """See Exercise."""
        self._result.copy_(self._values)

    def run(self) -> None:
        """See Exercise."""
        self._mine.reduce(self._result, 0, average=False).wait()

    def wrong(self) -> int:
        """See Exercise."""
        if self._rank == 0:
            return wrong_elements(self._result, *self._checked)
        return int((self._result != self._values).sum())


class AllToAll:
    """Gives every rank a shard of its tensor, and gets one of every rank."""

    common = None

    def __init__(self, mine: RankCollectives, context: RankContext, values: Tensor, seed: int) -> None:
        self._mine, self._values, self._seed = mine, values, seed
        self._rank, self._ranks = context.rank, context.world_size
        self._result = torch.empty_like(values)

    def prepare(self) -> None:
        """See Exercise."""
        self._result.copy_(self._values)

    def run(self) -> None:
        """See Exercise."""
        self._mine.all_to_all(self._result).wait()

    def wrong(self) -> int:
        """See Exercise."""
        shards, count = self._result.view(self._ranks, -1), self._result.numel()
        first = self._rank * shards.shape[1]
        return sum(moved_wrong(shard, self._seed, rank, count, first) for rank, shard in enumerate(shards))


class ReduceScatterAndAllGather:
    """Both at once."""

    def __init__(self, first: ReduceScatter, second: AllGather) -> None:
        self._both = first, second
        self.common = second.common

    def prepare(self) -> None:
        """See Exercise."""
        for each in self._both:
            each.prepare()

    def run(self) -> None:
        """See Exercise."""
        for future in [each.begin() for each in self._both]:
            future.wait()

    def wrong(self) -> int:
        """See Exercise."""
        return sum(each.wrong() for each in self._both)


def exercise_of(
    collective: str, mine: RankCollectives, context: RankContext, values: Tensor, seed: int, sum_unit: float | None
) -> Exercise:
    """The exercise of a collective that is no all-reduce."""
    match collective:
        case "broadcast":
            return Broadcast(mine, context, values, seed)
        case "reduce":
            return Reduce(mine, context, values, seed, sum_unit)
        case "all_to_all":
            return AllToAll(mine, context, values, seed)
        case "all_gather":
            return AllGather(mine, context, values, seed)
    scatter = ReduceScatter(mine, context, values, seed, sum_unit)
    return ReduceScatterAndAllGather(scatter, AllGather(mine, context, values, seed)) if collective == BOTH else scatter


def moved_wrong(result: Tensor, seed: int, rank: int, count: int, first: int = 0) -> int:
    """Count elements that are not a rank's own, those from `first` on of its tensor of `count` elements."""
    error = 0
    for begin, block in drawn(seed, rank, count, result.dtype):
        low, high = max(begin, first), min(begin + len(block), first + result.numel())
        if low < high:
            error += int((result[low - first : high - first] != block[low - begin : high - begin]).sum())
    return error
