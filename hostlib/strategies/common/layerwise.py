"""Trainer that exchanges fully connected layers in their own form and everything else by the mechanism, during the
backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from hostlib.pytorch.ddp_hook import HookState
from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.common.buckets import Averages, Buckets, Carrier, spread
from hostlib.strategies.common.gradient_exchange import LayerExchange
from hostlib.strategies.common.gradient_hooks import when_complete
from hostlib.strategies.common.linear_factors import Connected, connected_layers
from hostlib.strategies.trainer import DataParallel, TrainerContext


class LayerWise(DataParallel):
    """A rank's training steps under sfb, hybcomm, adam and onebit.

    Args:
        exchange: carries the chosen layers.
        choose: whether a fully connected layer uses the exchange; called after its first forward pass.
        carrier: carries everything else; the mechanism by default.
    """

    def __init__(
        self,
        context: TrainerContext,
        exchange: LayerExchange,
        choose: Callable[[Connected], bool],
        carrier: Callable[[HookState], Carrier] = Averages,
    ) -> None:
        super().__init__(context)
        self._layers = connected_layers(context.model)
        self._exchange, self._choose = exchange, choose
        self._carrier = carrier(self.state)
        self._chosen: list[Connected] = []
        self._buckets: Buckets | None = None
        self._under_way: list[tuple[Connected, Future[Tensor]]] = []

    @property
    def notes(self) -> dict[str, Any]:
        return self._exchange.notes

    def stats(self) -> dict[str, int] | None:
        return self._exchange.stats()

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.model.zero_grad(set_to_none=False)
        for layer in self._layers:
            layer.reset()
        loss = self.context.loss(self.model(inputs), labels)
        buckets = self._buckets = self._buckets or self._divided()
        self._exchange.step(self._layers)
        self.state.step = StepTimes(backward_begin_ns=time.perf_counter_ns())
        loss.backward()
        self.state.step.backward_ended()
        buckets.finish()
        for layer, gradient in self._under_way:
            spread(gradient.result(), [p.grad for p in self._taken(layer) if p.grad is not None])
        self._under_way.clear()
        self.optimiser.step()
        return float(loss.detach())

    def _divided(self) -> Buckets:
        chosen = [layer for layer in self._layers if layer.vectors and self._choose(layer)]
        taken = {id(p) for layer in chosen for p in self._taken(layer)}
        rest = [p for p in self.model.parameters() if p.requires_grad and id(p) not in taken]
        buckets = Buckets(rest, self.context.bucket_mb, self._carrier)
        self._chosen = chosen
        for number, layer in enumerate(chosen):
            when_complete(layer.module.weight, self._begin, number, len(buckets.sizes) + number)
        return buckets

    def _begin(self, number: int, bucket: int) -> None:
        layer = self._chosen[number]
        future = self._exchange.begin(number, layer, self.state.step, bucket)
        self._under_way.append((layer, future))

    def _taken(self, layer: Connected) -> list[Tensor]:
        """The parameters that use the exchange."""
        module = layer.module
        return [module.weight] + [module.bias] * (layer.shape.bias and self._exchange.form.with_bias)

    def close(self, graceful: bool = True) -> None:
        self._exchange.close(graceful)
        self._carrier.close(graceful)
