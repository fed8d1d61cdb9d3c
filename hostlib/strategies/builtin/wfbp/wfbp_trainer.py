"""Wait-free backpropagation: DDP's buckets are summed by the mechanism as soon as their gradients are ready.

Source: "Poseidon", section 3.1; Li et al. 2020, "PyTorch Distributed", section 3.2 (buckets).
"""

from __future__ import annotations

import time

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hostlib.pytorch.ddp_hook import average_hook
from hostlib.strategies.trainer import DataParallel, TrainerContext


class WaitFree(DataParallel):
    """A rank's training steps under wfbp."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._parallel = DistributedDataParallel(context.model, bucket_cap_mb=context.bucket_mb)
        self._parallel.register_comm_hook(self.state, average_hook)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=False)
        loss = self.context.loss(self._parallel(inputs), labels)
        begin_ns = time.perf_counter_ns()
        loss.backward()
        self.state.step.backward_begin_ns = begin_ns
        self.optimiser.step()
        return float(loss.detach())
