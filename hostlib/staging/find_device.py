"""Find a tensor's device. Support for a kind of device is loaded with its first tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from hostlib.errors import HostlibError
from hostlib.staging.device import Device

_found: dict[torch.device, Device] = {}


def require_cuda(name: str) -> torch.device:
    """The CUDA device of that name; `cuda` is the current one.

    Raises:
        HostlibError: there is none.
    """
    if not torch.backends.cuda.is_built():
        raise HostlibError(f"no CUDA device: torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise HostlibError(f"no CUDA device: torch {torch.__version__} is built for CUDA, but finds none")
    where = torch.device(name)
    if where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    if where.index >= torch.cuda.device_count():
        raise HostlibError(f"no device {name}: there are {torch.cuda.device_count()} CUDA devices")
    return where


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
