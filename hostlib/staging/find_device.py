"""Find a tensor's device. Support for a kind of device is loaded with its first tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.staging.device import Device

_found: dict[torch.device, Device] = {}


def device_of(tensor: Tensor) -> Device | None:
    """The device that a tensor is on; None for host memory.

    Raises:
        HostlibError: neither CPU nor CUDA, or Triton is missing.
    """
    kind = tensor.device.type
    if kind == "cpu":
        return None
    if kind != "cuda":
        raise HostlibError(f"tensors on {kind.upper()} cannot be summed; legal: CPU and CUDA")
    if tensor.device not in _found:
        # Load Triton with the first CUDA tensor, not before.
        from hostlib.staging.cuda import CudaDevice

        _found[tensor.device] = CudaDevice(tensor.device)
    return _found[tensor.device]
