"""ZeRO-1: gradients are reduce-scattered, a rank's optimiser has a shard of the weights, and the weights are gathered.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.1.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.common.buckets import MIB, Buckets, filled
from hostlib.strategies.common.shard_channel import Future, ShardChannel, ShardedParameters
from hostlib.strategies.trainer import TrainerContext


class ShardCarrier:
    """A carrier that reduce-scatters buckets while the backward pass goes on."""

    def __init__(self, channel: ShardChannel, flats: list[ShardedParameters]) -> None:
        self._channel, self._flats = channel, flats
        self._under_way: dict[int, Future] = {}

    def start(self, buckets: list[list[nn.Parameter]]) -> None:
        """Do nothing: the flat tensors are made of the same buckets."""

    def begin(self, number: int, gradients: Tensor) -> None:
        flat = self._flats[number]
        padded = torch.cat([gradients, gradients.new_zeros(flat.whole.numel() - gradients.numel())])
        self._under_way[number] = self._channel.reduce_scatter(padded, number)

    def finish(self, number: int, parameters: list[nn.Parameter]) -> None:
        self._flats[number].shard.grad = self._under_way.pop(number).wait()

    def close(self, graceful: bool) -> None:
        """Do nothing: the trainer closes the channel."""


class ShardedOptimiser:
    """A rank's training steps under zero1."""

    def __init__(self, context: TrainerContext) -> None:
        self.context, self.model = context, context.model
        self.state = HookState(context.sums)
        self._channel = ShardChannel(context, self.state)
        trained = [p for p in context.model.parameters() if p.requires_grad]
        buckets = filled(list(reversed(trained)), context.bucket_mb * MIB)
        self._flats = [ShardedParameters(each, self._channel.rank, self._channel.world_size) for each in buckets]
        self._buckets = Buckets(trained, context.bucket_mb, ShardCarrier(self._channel, self._flats))
        self.optimiser = context.optimiser([flat.shard for flat in self._flats])

    @property
    def notes(self) -> dict[str, Any]:
        return self._channel.notes

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.model.zero_grad(set_to_none=True)
        self.state.step = StepTimes()
        loss = self.context.loss(self.model(inputs), labels)
        self.state.step.backward_begin_ns = time.perf_counter_ns()
        loss.backward()
        self.state.step.backward_ended()
        self._buckets.finish()
        self.optimiser.step()
        for gathered in [self._channel.all_gather(flat.whole, flat.shard) for flat in self._flats]:
            gathered.wait()
        return float(loss.detach())

    def whole(self) -> nn.Module:
        return self.model

    def stats(self) -> dict[str, int] | None:
        return self._channel.stats()

    def close(self, graceful: bool = True) -> None:
        self._channel.close(graceful)
