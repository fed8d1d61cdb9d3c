"""Fully sharded data parallelism: between steps a rank has a shard of each unit's weights and of its optimiser's state.

A unit's weights are gathered before its forward pass and again before its backward pass, the next unit's meanwhile; its
gradients are reduce-scattered while the backward pass goes on.

Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", sections 3 and 4.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from torch import Tensor, nn

from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.common.gradient_hooks import when_complete
from hostlib.strategies.common.shard_channel import Future, ShardChannel, ShardedParameters
from hostlib.strategies.trainer import TrainerContext


class Unit:
    """Weights that are gathered together.

    Attributes:
        gradient: under way; its future holds this rank's shard.
        lacking: number of parameters without a gradient yet.
    """

    def __init__(self, parameters: list[nn.Parameter], channel: ShardChannel) -> None:
        self.flat = ShardedParameters(parameters, channel.rank, channel.world_size)
        self.gradient: Future | None = None
        self.lacking = len(parameters)
        self._channel = channel
        self._gathering: Future | None = None
        self._bytes = self.flat.whole.untyped_storage().nbytes()
        self._there = True
        self.free()

    def gather(self) -> None:
        """Begin to gather the weights, unless they are there or under way."""
        if not self._there and self._gathering is None:
            # The same storage: what autograd has saved of the weights are views of it.
            self.flat.whole.untyped_storage().resize_(self._bytes)
            self._gathering = self._channel.all_gather(self.flat.whole, self.flat.shard)

    def wait(self) -> None:
        """Have the weights."""
        self.gather()
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering, self._there = None, True

    def free(self) -> None:
        """Give the weights' memory back, except for the shard."""
        if self._gathering is not None:
            self.wait()
        self.flat.whole.untyped_storage().resize_(0)
        self._there = False


class FullySharded:
    """A rank's training steps under fsdp."""

    def __init__(self, context: TrainerContext) -> None:
        self.context, self.model = context, context.model
        self.state = HookState(context.sums)
        self._channel = ShardChannel(context, self.state)
        self._in_step = False
        self._units: list[Unit] = []
        # Of a step's forward pass, in the order of their uses; the next step's is the same unless the model changes.
        self._uses: list[Unit] = []
        self._last_uses: list[Unit] = []
        self._shard()
        self.optimiser = context.optimiser([unit.flat.shard for unit in self._units])

    @property
    def notes(self) -> dict[str, Any]:
        return {"units": len(self._units), **self._channel.notes}

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.state.step = StepTimes()
        for unit in self._units:
            unit.gradient, unit.lacking = None, len(unit.flat.parameters)
        self._last_uses, self._uses = self._uses, []
        self._in_step = True
        loss = self.context.loss(self.model(inputs), labels)
        self.state.step.backward_begin_ns = time.perf_counter_ns()
        loss.backward()
        self.state.step.backward_ended()
        self._in_step = False
        self._finish()
        self.optimiser.step()
        return float(loss.detach())

    def whole(self) -> nn.Module:
        for unit in self._units:
            unit.wait()
        return self.model

    def stats(self) -> dict[str, int] | None:
        return self._channel.stats()

    def close(self, graceful: bool = True) -> None:
        self._channel.close(graceful)

    # ---- units -------------------------------------------------------------------------------------------------------

    def _shard(self) -> None:
        """Make a unit of each module that has weights itself, with those of the modules in it, which it may use."""
        unit_of: dict[nn.Parameter, Unit] = {}
        modules = [each for each in self.model.modules() if any(p.requires_grad for p in each.parameters(False))]
        for module in modules:
            trained = [p for p in module.parameters() if p.requires_grad]
            if left := [p for p in trained if p not in unit_of]:
                self._units.append(Unit(left, self._channel))
                unit_of |= dict.fromkeys(left, self._units[-1])
            needed = list(dict.fromkeys(unit_of[p] for p in trained))
            module.register_forward_pre_hook(partial(self._before_forward, needed))
            module.register_forward_hook(partial(self._after_forward, needed))
        for parameter, unit in unit_of.items():
            when_complete(parameter, self._has_gradient, self._units.index(unit))

    def _before_forward(self, units: list[Unit], module: nn.Module, inputs: Any) -> None:
        if not self._in_step:
            return
        for unit in units:
            unit.gather()
            place = len(self._uses)
            self._uses.append(unit)
            unit.wait()
            if place + 1 < len(self._last_uses) and self._last_uses[place] is unit:
                self._last_uses[place + 1].gather()

    def _after_forward(self, units: list[Unit], module: nn.Module, inputs: Any, outputs: Any) -> None:
        if not self._in_step:
            return
        place = len(self._uses) - 1
        for unit in units:
            unit.free()
        for tensor in _tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._before_backward, units, place))

    def _before_backward(self, units: list[Unit], place: int, gradient: Tensor) -> None:
        for unit in units:
            unit.wait()
        before = place - len(units)
        if before >= 0:
            self._uses[before].gather()

    def _has_gradient(self, number: int) -> None:
        unit = self._units[number]
        unit.lacking -= 1
        if unit.lacking == 0:
            self._scatter(unit)

    def _scatter(self, unit: Unit) -> None:
        unit.gradient = self._channel.reduce_scatter(unit.flat.gradients(), self._units.index(unit))
        unit.free()

    def _finish(self) -> None:
        """End the backward pass: parameters without gradients count as zero."""
        for unit in self._units:
            if unit.gradient is None:
                self._scatter(unit)
        for unit in self._units:
            assert unit.gradient is not None
            unit.flat.shard.grad = unit.gradient.wait()


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors among a module's outputs."""
    if isinstance(outputs, Tensor):
        return [outputs]
    if isinstance(outputs, dict):
        outputs = list(outputs.values())
    return [tensor for each in outputs for tensor in _tensors(each)] if isinstance(outputs, list | tuple) else []
