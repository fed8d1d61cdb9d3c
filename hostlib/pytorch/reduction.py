"""A sum over the ranks that a caller may wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.staging.find_device import device_of

Future = torch.futures.Future


class Reduction(dist.Work):
    """Sums under way: a torch.distributed.Work. Unlike torch's own work over a future, waiting for it raises what went
    wrong, and can be interrupted.

    Args:
        sums: the collective's futures, in the order in which they were asked for.
        finish: makes the result of them, once all are there.
    """

    def __init__(self, sums: list[Future[Tensor]], finish: Callable[[], list[Tensor]]) -> None:
        super().__init__()

        def collect(_: Future[Tensor]) -> list[Tensor]:
            for one in sums:
                one.wait()
            return finish()

        self._sums = sums
        self._result: Future[list[Tensor]] = sums[-1].then(collect)
        self._ended = threading.Event()
        self._result.add_done_callback(lambda _: self._ended.set())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the sums are there, in the tensors' place; True.

        Args:
            timeout: for so long; None for the deadline that the ranks have agreed on.

        Raises:
            HostlibError: what went wrong, or the timeout passed.
            OverflowError: int32 sums that might overflow, on every rank.
        """
        seconds = timeout.total_seconds() if timeout else None  # torch's "no timeout" is 0
        if not self._ended.wait(seconds):
            raise RunError(f"the sum did not end within {seconds:g} s")
        for one in self._sums:
            one.value()  # The error itself: the result's future has only its text.
        self._result.wait()  # From here on the caller's stream waits for the device's result; the caller does not.
        return True

    def is_completed(self) -> bool:
        """Whether waiting would return, or raise, at once."""
        return self._ended.is_set()

    def get_future(self) -> Future[list[Tensor]]:
        """torch's, of the summed tensors."""
        return self._result

    def result(self) -> list[Tensor]:
        """The summed tensors. Raises what `wait` does."""
        self.wait()
        return self._result.value()


def require_summable(what: str, tensor: Tensor) -> None:
    """Raises HostlibError: a mechanism does not take such tensors, whatever their dtype; it begins with `what`."""
    if tensor.layout != torch.strided:
        raise HostlibError(f"{what}: backend netfold sums dense tensors, not {tensor.layout}: use .to_dense()")
    try:
        device_of(tensor)
    except HostlibError as error:
        raise HostlibError(f"{what}: {error}") from error
