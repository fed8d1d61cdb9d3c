"""Gloo's own collectives but for the all-reduce, as yardsticks."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from hostlib.schedules.contract import Collective
from hostlib.transport.rank_context import RankContext


class GlooExecutor:
    """One of Gloo's collectives, over connections of its own."""

    def __init__(self, collective: Collective, context: RankContext) -> None:
        self._collective, self._rank, self._world_size = collective, context.rank, context.world_size
        self._gloo = context.another_gloo()

    def execute(self, tensor: Tensor, average: bool = False, root: int = 0) -> None:
        """Do it with a flat contiguous tensor in place; see hostlib.collectives.mechanism_executor.

        Raises:
            RuntimeError: a rank does not answer.
        """
        if tensor.numel() == 0:
            return
        result = self._done(tensor, root)
        if average:
            result.div_(self._world_size)

    def _done(self, tensor: Tensor, root: int) -> Tensor:
        """The part of the tensor that then has this rank's result."""
        match self._collective:
            case Collective.BROADCAST:
                broadcast = dist.BroadcastOptions()
                broadcast.rootRank, broadcast.rootTensor = root, 0
                self._gloo.broadcast([tensor], broadcast).wait()
                return tensor
            case Collective.REDUCE:
                reduce = dist.ReduceOptions()
                reduce.rootRank, reduce.rootTensor = root, 0
                self._gloo.reduce([tensor], reduce).wait()
                return tensor
            case Collective.ALL_TO_ALL:
                self._gloo.alltoall_base(tensor, tensor.clone(), [], []).wait()
                return tensor
        shards = list(tensor.chunk(self._world_size))
        mine = shards[self._rank].clone()
        if self._collective is Collective.ALL_GATHER:
            self._gloo.allgather([shards], [mine]).wait()
            return tensor
        self._gloo.reduce_scatter([mine], [shards]).wait()
        return shards[self._rank].copy_(mine)
