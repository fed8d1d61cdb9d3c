"""Wait-free backpropagation: DDP's buckets go over the mechanism as soon as their gradients are there.

Source: "Poseidon", section 3.1; Li et al. 2020, "PyTorch Distributed", section 3.2 (buckets).
"""

from __future__ import annotations

import time

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from hostlib.hook import average_hook
from hostlib.training.setting import DataParallel, Setting


class WaitFree(DataParallel):
    """A rank's steps under wfbp."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._parallel = DistributedDataParallel(setting.model, bucket_cap_mb=setting.options.bucket_mb)
        self._parallel.register_comm_hook(self.state, average_hook)

    def step(self, inputs: Tensor, labels: Tensor) -> float:
        self.optimiser.zero_grad(set_to_none=False)
        loss = self.setting.loss(self._parallel(inputs), labels)
        begin_ns = time.perf_counter_ns()
        loss.backward()
        self.state.step.backward_begin_ns = begin_ns
        self.optimiser.step()
        return float(loss.detach())
