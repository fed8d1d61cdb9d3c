"""A handle for a sum over the ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.pytorch.future_waits import followed_by, watch_waits, when_done
from hostlib.pytorch.torch_errors import torch_error, torch_errors
from hostlib.staging.completion_threads import let_others_complete
from hostlib.staging.find_device import device_of

Future = torch.futures.Future

watch_waits()

OVERLAPS = 1  # of torch's answers: a dimension has stride 0, as expand() makes it. Source: ATen/MemoryOverlap.h.


class Reduction(dist.Work):
    """Sums in progress, as a torch.distributed.Work.

    Unlike torch's own work over a future, `wait` raises the original error and can be interrupted.

    Args:
        sums: the collective's futures, in issue order.
        finish: computes the result once all sums are complete.
    """

    def __init__(self, sums: list[Future[Tensor]], finish: Callable[[], list[Tensor]]) -> None:
        super().__init__()

        def collect(_: Future[Tensor]) -> list[Tensor]:
            for one in sums:
                one.wait()
            return finish()

        self._sums = sums
        self._result: Future[list[Tensor]] = followed_by(sums[-1], collect)
        self._ended = threading.Event()
        when_done(self._result, self._ended.set)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the sums have replaced the tensors' values; returns True.

        Args:
            timeout: None for the deadline that the ranks have agreed on.

        Raises:
            HostlibError: the sum failed, or the timeout passed.
            OverflowError: int32 sums might overflow; raised on every rank.
        """
        seconds = timeout.total_seconds() if timeout else None  # torch's "no timeout" is 0
        begun = time.monotonic()
        if not self._ended.is_set():
            let_others_complete(lambda resume: when_done(self._result, resume), seconds)
        left = None if seconds is None else max(0.0, begun + seconds - time.monotonic())
        if not self._ended.wait(left):
            raise torch_error(RunError(f"the sum was not complete within {seconds:g} s"))
        with torch_errors():
            for one in self._sums:
                one.value()  # Raise the error itself: the result's future has only its text.
        self._result.wait()  # Make the caller's stream, not the caller, wait for the device's result.
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._ended.is_set()

    def get_future(self) -> Future[list[Tensor]]:
        """Return torch's future of the summed tensors."""
        return self._result

    def result(self) -> list[Tensor]:
        """Return the summed tensors. Raises what `wait` raises."""
        self.wait()
        return self._result.value()


def require_summable(what: str, tensor: Tensor) -> None:
    """Check that mechanisms can sum a tensor, whatever its dtype. Raises HostlibError, with `what` as the subject."""
    if not isinstance(tensor, Tensor):
        raise HostlibError(f"{what}: backend netfold sums a torch.Tensor, not a {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise HostlibError(f"{what}: backend netfold sums dense tensors, not {tensor.layout}: use .to_dense()")
    require_dense(what, tensor)
    try:
        device_of(tensor)
    except HostlibError as error:
        raise HostlibError(f"{what}: {error}") from error


def require_dense(what: str, tensor: Tensor) -> None:
    """Check that each element of a strided tensor is in a place of its own. Raises HostlibError."""
    if tensor.is_neg():  # The memory holds the values' negatives.
        raise HostlibError(f"{what}: backend netfold sums no tensors with the negative bit: use .resolve_neg()")
    if torch._debug_has_internal_overlap(tensor) == OVERLAPS:
        raise HostlibError(f"{what}: backend netfold sums no tensors whose elements share memory: use .contiguous()")
