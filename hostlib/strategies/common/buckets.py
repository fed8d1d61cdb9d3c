"""Buckets of gradients that are synchronised unchanged, as soon as the backward pass has computed them.

Source: "Poseidon", section 3.1; Li et al. 2020, "PyTorch Distributed", section 3.2 (buckets).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from hostlib.pytorch.ddp_hook import HookState
from hostlib.strategies.common.gradient_hooks import when_complete

MIB = 1 << 20


class Carrier(Protocol):
    """Sends a bucket's gradients to the other ranks."""

    def start(self, buckets: list[list[nn.Parameter]]) -> None:
        """Set the buckets."""
        ...

    def begin(self, number: int, gradients: Tensor) -> None:
        """Start a bucket; all ranks start theirs in the same order. The caller must not use the tensor any more."""
        ...

    def finish(self, number: int, parameters: list[nn.Parameter]) -> None:
        """Wait for a bucket that was begun, and store the result in the parameters or their gradients."""
        ...

    def close(self, graceful: bool) -> None: ...


class Buckets:
    """Some of a model's parameters, in buckets that are sent once their gradients are complete.

    Args:
        parameters: in the model's order; the backward pass goes the other way round.
        size_mb: of a bucket in MiB; one with a single parameter may be larger.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], size_mb: float, carrier: Carrier) -> None:
        self._buckets = filled(list(reversed(parameters)), size_mb * MIB)
        self._carrier = carrier
        carrier.start(self._buckets)
        self._lacking = [0] * len(self._buckets)
        self._begun = 0
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                when_complete(parameter, self._ready, number)
        self.reset()

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each bucket."""
        return [sum(p.numel() for p in bucket) for bucket in self._buckets]

    def reset(self) -> None:
        """Prepare for a backward pass."""
        self._lacking = [len(bucket) for bucket in self._buckets]
        self._begun = 0

    def _ready(self, number: int) -> None:
        self._lacking[number] -= 1
        while self._begun < len(self._buckets) and self._lacking[self._begun] == 0:
            self._begin()

    def _begin(self) -> None:
        gradients = [p.grad.reshape(-1) for p in self._buckets[self._begun] if p.grad is not None]
        self._carrier.begin(self._begun, torch.cat(gradients))
        self._begun += 1

    def finish(self) -> None:
        """End the backward pass: parameters without gradients count as zero."""
        for bucket in self._buckets[self._begun :]:
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._begin()
        for number, bucket in enumerate(self._buckets):
            self._carrier.finish(number, bucket)
        self.reset()


def filled(parameters: list[nn.Parameter], size_bytes: float) -> list[list[nn.Parameter]]:
    """Buckets of neighbouring parameters, of at most that size unless they have a single parameter."""
    buckets: list[list[nn.Parameter]] = []
    left = 0.0
    for parameter in parameters:
        if parameter.nbytes > left:
            buckets.append([])
            left = size_bytes
        buckets[-1].append(parameter)
        left -= parameter.nbytes
    return buckets


def spread(values: Tensor, over: list[Tensor]) -> None:
    """Copy a flat tensor's parts to tensors."""
    with torch.no_grad():
        for tensor, part in zip(over, values.split([t.numel() for t in over]), strict=True):
            tensor.copy_(part.view_as(tensor))


class Averages:
    """A carrier that averages buckets over the ranks with the mechanism."""

    def __init__(self, state: HookState) -> None:
        self._state = state
        self._under_way: dict[int, torch.futures.Future[Tensor]] = {}

    def start(self, buckets: list[list[nn.Parameter]]) -> None:
        """Do nothing: the mechanism accepts any buckets."""

    def begin(self, number: int, gradients: Tensor) -> None:
        self._state.buckets.append(gradients.numel())
        span = self._state.step.begin(number, gradients.nbytes)

        def done(average: torch.futures.Future[Tensor]) -> Tensor:
            span.done_ns = time.perf_counter_ns()
            return average.value()

        self._under_way[number] = self._state.collective.allreduce(gradients, average=True).then(done)

    def finish(self, number: int, parameters: list[nn.Parameter]) -> None:
        spread(self._under_way.pop(number).wait(), [p.grad for p in parameters if p.grad is not None])

    def close(self, graceful: bool) -> None:
        """Do nothing: the collective's creator closes it."""
