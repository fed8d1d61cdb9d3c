"""hostlib.staging.device for CUDA, with torch's streams and events and the Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hostlib.errors import HostlibError, RunError

try:
    from hostlib.staging import triton_kernels
except ImportError as absent:
    raise HostlibError(
        f"sums of CUDA tensors need Triton, which every CUDA build of torch brings: pip install triton ({absent})"
    ) from absent

URGENT = -1  # stream priority: higher than the caller's streams


@contextmanager
def _reported() -> Iterator[None]:
    """Report CUDA's and Triton's errors in one line; they surface late, in whatever call comes next."""
    try:
        yield
    except HostlibError:
        raise
    except Exception as error:
        raise RunError(f"the CUDA device failed: {(str(error).splitlines() or [repr(error)])[0]}") from error


class CudaEvent:
    """A CUDA event with cudaEventBlockingSync: a waiting thread sleeps."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(blocking=True)
        self.event.record(stream)

    def wait(self) -> None:
        with _reported():
            self.event.synchronize()


class CudaStream:
    """A side stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=URGENT)

    # Entering a stream takes 20 us of Python, an operation in it 4 to 40: so callers enter once for several.

    @contextmanager
    def use(self) -> Iterator[None]:
        with _reported(), torch.cuda.stream(self._stream):
            yield

    def after(self, event: CudaEvent) -> None:
        self._stream.wait_event(event.event)

    def mark(self) -> CudaEvent:
        return CudaEvent(self._stream)

    def keep(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, device=self._stream.device)

    def copy(self, into: Tensor, source: Tensor) -> None:
        into.copy_(source, non_blocking=True)

    def block_codes(self, values: Tensor, codes: Tensor, elements: int) -> None:
        triton_kernels.block_codes(values, codes, elements)

    def quantise(self, values: Tensor, codes: Tensor, words: Tensor, elements: int, world_size: int) -> None:
        triton_kernels.quantise(values, codes, words, elements, world_size)

    def dequantise(
        self, words: Tensor, codes: Tensor, values: Tensor, elements: int, world_size: int, average: bool
    ) -> None:
        triton_kernels.dequantise(words, codes, values, elements, world_size, average)


class CudaDevice:
    """One GPU. torch's allocators track which copies use pinned memory, and which streams use a tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def now(self) -> CudaEvent:
        with _reported():
            return CudaEvent(torch.cuda.current_stream(self._device))

    def stream(self) -> CudaStream:
        with _reported():
            return CudaStream(self._device)

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        with _reported():
            return torch.empty(count, dtype=dtype, pin_memory=True)

    def future(self) -> torch.futures.Future[Any]:
        return torch.futures.Future(devices=[self._device])
