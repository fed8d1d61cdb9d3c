"""A collective that is made at its first sum, so that a group that sums nothing takes no place on a switch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hostlib.collectives.collective import Collective
from hostlib.collectives.vendor import CLOSE_S
from hostlib.errors import HostlibError, RunError
from hostlib.protocol.openings import TensorCut
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.find_device import device_of
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.refusals import refuse
from hostlib.transport.transport import first_line

Future = torch.futures.Future


class DeferredCollective:
    """Makes a collective in a thread of its own when the first tensor is to be summed; until then tensors wait.

    The caller waits, too, if the tensor is on a device: its stream must be known when the sum begins.

    Args:
        make: makes the collective; all ranks do, in the same order. If it raises, every sum is refused with that error.
    """

    def __init__(self, name: str, make: Callable[[], Collective]) -> None:
        self.name = name
        self._make = make
        self._made: Collective | None = None
        self._failed: HostlibError | None = None
        self._starting = SerialExecutor("first sum")
        self._completing = CompletionThreads(name)
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def allreduce(self, tensor: Tensor, average: bool, future: Future[Tensor] | None = None) -> Future[Tensor]:
        future = Future() if future is None else future
        try:
            on_device = device_of(tensor) is not None
        except HostlibError as error:
            refuse(future, error)
            return future
        with self._lock:
            if on_device:
                there = threading.Event()
                self._starting.put(self._require)
                self._starting.put(there.set)
                there.wait()
                if self._made is None:
                    refuse(future, self._why())
                    return future
            if self._made is not None and self._starting.idle:
                return self._made.allreduce(tensor, average, future)
            self._starting.put(lambda: self._forward(tensor, average, future))
        return future

    def _require(self) -> None:
        if self._made is not None or self._failed is not None:
            return
        try:
            made = self._make()
        except HostlibError as error:
            self._failed = error
        except Exception as error:
            self._failed = RunError(first_line(error))
        else:
            if self._closed.is_set():
                made.close(False)
            else:
                self._made = made

    def _why(self) -> HostlibError:
        return self._failed or RunError("this collective is closed")

    def _forward(self, tensor: Tensor, average: bool, future: Future[Tensor]) -> None:
        self._require()
        if self._made is None:
            self._completing.put(partial(refuse, future, self._why()))
            return
        # Not a future of its own, which might be complete before anything could be attached to it: callbacks would then
        # run in this thread, and what they begin be in another order than on other ranks.
        self._made.allreduce(tensor, average, future)

    def complete(self, job: Callable[[], None]) -> None:
        """Run a job in the thread that completes futures, behind those that are complete."""
        completing: CompletionThreads = getattr(self._made, "completing", self._completing)  # NCCL's are the device's
        completing.put(job)

    @property
    def tensor_cut(self) -> TensorCut | None:
        return getattr(self._made, "tensor_cut", None)

    def stats(self) -> dict[str, int] | None:
        return None if self._made is None else self._made.stats()

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric."""
        return [] if self._made is None else self._made.failures

    def close(self, graceful: bool = True) -> None:
        """Close the collective, if it was made."""
        if not graceful:
            self._closed.set()
        self._starting.close(CLOSE_S if not graceful else None)
        self._closed.set()
        if self._made is not None:
            self._made.close(graceful)
        self._completing.close(CLOSE_S)
