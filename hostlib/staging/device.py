"""What the sums of tensors on a device need of it: streams, events, pinned memory, and the fused kernels.

hostlib/staging/cuda.py has it for CUDA. All that a Stream is asked to do happens later, in the order in which it was asked;
only Event.wait() waits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class DeviceEvent(Protocol):
    """What a stream had been asked to do at one moment."""

    def wait(self) -> None:
        """Sleep until it is done.

        Raises:
            HostlibError: the device failed.
        """
        ...


class Stream(Protocol):
    """Work in order, beside all that the caller's own streams do.

    Values are flat and contiguous; codes are int16, one per block of `elements` values, with SPECIAL_CODE for
    EXPONENT_SPECIAL; words are int32. hostlib/protocol/block_float.py says what the kernels compute, bit for bit.
    """

    def use(self) -> AbstractContextManager[Any]:
        """Make it torch's current stream: for a future's result, whose readers then wait for the stream."""
        ...

    def after(self, event: Any) -> None:
        """What follows waits for an event of this device; the caller does not."""
        ...

    def mark(self) -> DeviceEvent: ...

    def keep(self, tensor: Tensor) -> None:
        """A tensor's memory is not given to others before all of this is done."""
        ...

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """Memory of the device, for this stream alone."""
        ...

    def copy(self, into: Tensor, source: Tensor) -> None: ...

    def block_codes(self, values: Tensor, codes: Tensor, elements: int) -> None: ...

    def quantise(self, values: Tensor, codes: Tensor, words: Tensor, elements: int, world_size: int) -> None: ...

    def dequantise(
        self, words: Tensor, codes: Tensor, values: Tensor, elements: int, world_size: int, average: bool
    ) -> None: ...


class Device(Protocol):
    """Where a tensor is."""

    def now(self) -> Any:
        """An event: what the caller's current stream has been asked to do so far."""
        ...

    def stream(self) -> Stream:
        """A new one."""
        ...

    def pinned(self, count: int, dtype: torch.dtype) -> Tensor:
        """Host memory that the device copies to and from by itself; free again when its copies are done."""
        ...

    def future(self) -> torch.futures.Future[Any]:
        """One whose readers wait on the device for what completed it."""
        ...
