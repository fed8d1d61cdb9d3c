"""Flat tensors in a shard for each rank, reduce-scattered and gathered by the mechanism."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hostlib.collectives.rank_collectives import RankCollectives
from hostlib.pytorch.ddp_hook import HookState
from hostlib.strategies.common.sharded_plan import hosts_reduce_scatter
from hostlib.strategies.trainer import TrainerContext

Future = torch.futures.Future[Tensor]


class ShardChannel:
    """A rank's reduce-scatters and all-gathers, each kind in issue order; the two kinds run at the same time.

    Args:
        state: is told of the sums.
    """

    def __init__(self, context: TrainerContext, state: HookState) -> None:
        ranks = context.rank_context
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self._state, self._sums = state, context.sums
        self._collectives = RankCollectives(context.mechanism, ranks, context.controller, context.address)
        self._scatters = hosts_reduce_scatter(context.mechanism)

    @property
    def notes(self) -> dict[str, Any]:
        """What the fabric's failures were, of mechanisms that use it."""
        return {"fabric_failures": self._collectives.failures} if self._collectives.stats() is not None else {}

    def reduce_scatter(self, gradients: Tensor, number: int) -> Future:
        """Average a flat tensor of whole shards over the ranks; the future holds this rank's shard.

        Where hosts cannot run the mechanism's reduce-scatter, a rank takes its part of an all-reduce.

        Args:
            gradients: the caller must not use it any more.
            number: of the bucket or unit.
        """
        self._state.buckets.append(gradients.numel())
        span = self._state.step.begin(number, gradients.nbytes)
        size = gradients.numel() // self.world_size

        def done(average: Future) -> Tensor:
            span.done_ns = time.perf_counter_ns()
            value = average.value()
            return value if value.numel() == size else value.narrow(0, self.rank * size, size)

        if self._scatters:
            return self._collectives.reduce_scatter(gradients.new_empty(size), gradients, average=True).then(done)
        return self._sums.allreduce(gradients, average=True).then(done)

    def all_gather(self, whole: Tensor, shard: Tensor) -> Future:
        """Gather the ranks' shards, bit for bit."""
        return self._collectives.all_gather(whole, shard)

    def stats(self) -> dict[str, int] | None:
        """The counters of all packet engines, added up; None without an engine."""
        return self._collectives.stats()

    def close(self, graceful: bool) -> None:
        """End; see Trainer.close."""
        self._collectives.close(graceful)


class ShardedParameters:
    """Parameters as parts of one flat tensor, which is padded so that each rank's shard has as many elements.

    Their values become views of it.

    Attributes:
        whole: flat.
        shard: this rank's, a tensor of its own, which optimisers step.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, world_size: int) -> None:
        self.parameters = list(parameters)
        self._sizes = [p.numel() for p in self.parameters]
        size = -(-sum(self._sizes) // world_size)
        self.whole = self._flat([p.detach() for p in self.parameters], size * world_size)
        parts = self.whole.split([*self._sizes, self.whole.numel() - sum(self._sizes)])
        for parameter, part in zip(self.parameters, parts, strict=False):
            parameter.data = part.view_as(parameter)
        self.shard = nn.Parameter(self.whole.narrow(0, rank * size, size).clone())

    def gradients(self) -> Tensor:
        """A flat copy of the gradients, in which missing ones are zeros; the parameters have none any more."""
        flat = self._flat(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters], self.whole.numel()
        )
        for parameter in self.parameters:
            parameter.grad = None
        return flat

    def _flat(self, tensors: Sequence[Tensor], size: int) -> Tensor:
        flat = tensors[0].new_zeros(size)
        torch.cat([each.reshape(-1) for each in tensors], out=flat[: sum(self._sizes)])
        return flat
