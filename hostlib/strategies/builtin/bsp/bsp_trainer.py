"""Bulk-synchronous training: all gradients as one tensor, after the backward pass."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from hostlib.pytorch.step_times import StepTimes
from hostlib.strategies.trainer import DataParallel


class BulkSynchronous(DataParallel):
    """A rank's training steps under bsp."""

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=False)
        loss = self.context.loss(self.model(inputs), labels)
        begin_ns = time.perf_counter_ns()
        loss.backward()
        self._synchronise()
        self.state.step.backward_begin_ns = begin_ns
        self.optimiser.step()
        return float(loss.detach())

    def _synchronise(self) -> None:
        self.state.step = step = StepTimes()
        step.backward_ended()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.view(-1) for g in gradients])
        self.state.buckets.append(flat.numel())
        span = step.begin(0, flat.nbytes)
        # Concatenating the tensors is this strategy's own work, so it counts as communication.
        span.begin_ns = step.backward_end_ns
        self.context.sums.allreduce(flat, average=True).wait()
        span.done_ns = time.perf_counter_ns()
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
