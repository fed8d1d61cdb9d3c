"""The interface to a device: streams, events, pinned memory, and the fused kernels.

hostlib/staging/cuda.py implements it for CUDA. All calls on a Stream are asynchronous and executed in order; only
Event.wait() blocks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class DeviceEvent(Protocol):
    """The point in a stream at which it was recorded."""

    def wait(self) -> None:
        """Sleep until the stream has reached it.

        Raises:
            HostlibError: the device failed.
        """
        ...


class Stream(Protocol):
    """A queue of work that runs beside the caller's own streams.

    Values are flat and contiguous; codes are int16, one per block of `elements` values, with SPECIAL_CODE for
    EXPONENT_SPECIAL; words are int32. hostlib/protocol/block_float.py defines what the kernels compute, bit for bit.
    """

    def use(self) -> AbstractContextManager[Any]:
        """Make it torch's current stream: for `empty`, `copy` and the kernels, which need it, and for setting a
        future's result, whose readers then wait for the stream.
        """
        ...

    def after(self, event: Any) -> None:
        """Let later work wait for an event of this device; the caller does not wait."""
        ...

    def mark(self) -> DeviceEvent: ...

    def keep(self, tensor: Tensor) -> None:
        """Keep a tensor's memory from being reused until all work so far is done."""
        ...

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """Allocate device memory for this stream only."""
        ...

    def copy(self, into: Tensor, source: Tensor) -> None: ...

    def block_codes(self, values: Tensor, codes: Tensor, elements: int) -> None: ...

    def quantise(self, values: Tensor, codes: Tensor, words: Tensor, elements: int, world_size: int) -> None: ...

    def dequantise(
        self, words: Tensor, codes: Tensor, values: Tensor, elements: int, world_size: int, average: bool
    ) -> None: ...


class Device(Protocol):
    """The device that holds a tensor."""

    def now(self) -> Any:
        """Record an event in the caller's current stream."""
        ...

    def stream(self) -> Stream:
        """Create a stream."""
        ...

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        """Allocate pinned host memory, which is reused once its copies are done."""
        ...

    def future(self) -> torch.futures.Future[Any]:
        """Create a future whose readers wait on the device for the work that completed it."""
        ...
