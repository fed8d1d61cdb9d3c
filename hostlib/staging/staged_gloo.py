"""Stage CUDA tensors through pinned memory for Gloo's CPU-only operations.

Source: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp. Gloo copies CUDA tensors itself in all-reduce, broadcast,
reduce, all-gather, gather, scatter and all-to-all. In other operations it passes their addresses to its sockets
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from hostlib.staging.find_device import device_of

# The arguments that each operation receives into.
RECEIVED: dict[str, tuple[int, ...]] = {
    "send": (),
    "recv": (0,),
    "recv_anysource": (0,),
    "all_gather_single_coalesced": (0,),
    "allgather_into_tensor_coalesced": (0,),
}


class StagedWork(dist.Work):
    """Gloo's work; `wait` copies what was received to the device's tensors."""

    def __init__(self, work: Any, received: list[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._work, self._received = work, received

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self._work.wait() if timeout is None else self._work.wait(timeout)
        while self._received:
            tensor, host = self._received.pop()
            # On the caller's stream, before its later work.
            tensor.detach().copy_(host.view(tensor.shape), non_blocking=True)
        return bool(done)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed()) and not self._received

    def _source_rank(self) -> int:
        return int(self._work._source_rank())


def staged(name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call one of RECEIVED, staging device tensors through the host. Blocks until tensors to be sent are computed."""
    received: list[tuple[Tensor, Tensor]] = []
    through_host = False

    def on_host(tensor: Tensor, coming: bool) -> Tensor:
        nonlocal through_host
        device = device_of(tensor)
        if device is None:
            return tensor
        through_host = True
        host = device.pinned(tensor.numel(), tensor.dtype)
        if coming:
            received.append((tensor, host))
        else:
            stream = device.stream()
            stream.after(device.now())
            stream.keep(tensor)
            with stream.use():
                stream.copy(host.view(tensor.shape), tensor.detach())
            stream.mark().wait()
        return host.view(tensor.shape)

    lists = [
        [on_host(tensor, place in RECEIVED[name]) for tensor in argument] if _tensors(argument) else argument
        for place, argument in enumerate(arguments)
    ]
    work = call(*lists)
    return StagedWork(work, received) if through_host else work


def _tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Tensor) for one in value)
