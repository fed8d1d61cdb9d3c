"""Libraries' own all-reduces, as yardsticks."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.errors import HostlibError, RunError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of
from hostlib.staging.request import ReduceRequest, host_request, wire_dtype
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.agreement import Agreement
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse
from hostlib.transport.transport import Pending, ReducingTransport, first_line

CLOSE_S = 2.0


def library_collective(mechanism: Mechanism, context: RankContext, job: str) -> LibraryCollective:
    """Create the collective of a library yardstick.

    Raises:
        HostlibError: its library is missing.
    """
    require_library(mechanism, context.transport.name)
    if mechanism.one_host:
        return SharedMemoryCollective(context, job)
    if mechanism.device is not None:
        return NcclCollective(context)
    if mechanism.transport is not None:
        return TransportCollective(cast(ReducingTransport, context.transport), context, job)
    return GlooCollective(context, job)


def require_library(mechanism: Mechanism, transport: str) -> None:
    """Check that a yardstick's library is here. Raises HostlibError: it is missing."""
    mechanism.require_transport(transport)
    if mechanism.device is None:
        return
    lacks = None if torch.cuda.is_available() else "a CUDA device, and there is none here"
    if not dist.is_nccl_available():
        lacks = "torch built with NCCL, and this one is not"
    if lacks is not None:
        raise HostlibError(f"{mechanism.name} needs {lacks}; see `hostlib mechanisms` for others")


class GlooCollective:
    """Gloo's own all-reduce."""

    tensor_cut = None

    def __init__(self, context: RankContext, job: str) -> None:
        self._context = context
        self._devices: dict[Device, DeviceReduction] = {}
        self._agreement = Agreement(context)
        self._starting = SerialExecutor("gloo")
        self.completing = CompletionThreads(job)
        self._broken: HostlibError | None = None
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        try:
            wire_dtype(tensor, average)
            device = device_of(tensor)
        except HostlibError as error:
            refuse(future, error)
            return future
        since = time.monotonic()
        if device is None:
            request = ReduceRequest(
                tensor, average, lambda: None, partial(future.set_result, tensor), partial(refuse, future)
            )
            if self._starting.idle and not self._context.in_script:
                self._sum(request, since)
            else:
                self._starting.put(lambda: self._sum_alike(request, since))
            return future
        future = device.future()
        if device not in self._devices:
            self._devices[device] = DeviceReduction(device, self._context.world_size, None, lambda codes: None)
        go_on = self._devices[device].ask(tensor, tensor.dtype, average, future)
        self._starting.put(lambda: go_on(lambda request: self._wait_for(request, since)))
        return future

    def _sum(self, request: ReduceRequest, since: float) -> threading.Event:
        """Begin a sum; the event is set once its request is finished but for its future."""
        options, over = dist.AllreduceOptions(), threading.Event()
        place = self.completing.reserve()  # Gloo's threads end sums in any order.
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]

        def finish(done: torch.futures.Future[Any]) -> None:
            try:
                done.value()
                if request.average:
                    request.values.div_(self._context.world_size)
                request.deliver()
            except Exception as error:
                explained = error if isinstance(error, HostlibError) else self._context.explain(since, error)
                self.completing.put(partial(request.end, explained), place)
            else:
                self.completing.put(partial(request.end, None), place)
            over.set()

        try:
            self._context.gloo.allreduce([request.values], options).get_future().add_done_callback(finish)
        except RuntimeError as error:
            self.completing.put(partial(request.end, RunError(first_line(error))), place)
            over.set()
        return over

    def _sum_alike(self, request: ReduceRequest, since: float) -> threading.Event:
        """As _sum, once the ranks have confirmed that their tensors are alike."""
        try:
            self._confirm(request.values, request.average, since)
        except HostlibError as error:
            self.completing.put(partial(request.end, error))
            over = threading.Event()
            over.set()
            return over
        return self._sum(request, since)

    def _confirm(self, tensor: Tensor, average: bool, since: float) -> None:
        if self._broken is not None:
            raise self._broken
        try:
            self._agreement.confirm(tensor.numel(), tensor.dtype, average)
        except HostlibError as error:
            self._broken = error
            raise
        except RuntimeError as error:
            self._broken = self._context.explain(since, error)
            raise self._broken from error

    def _wait_for(self, request: ReduceRequest, since: float) -> None:
        self._sum_alike(request, since).wait()

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._starting.close(self._context.deadline_s if graceful else CLOSE_S)
        self.completing.close(CLOSE_S)


class TransportCollective:
    """The all-reduce of the message library, such as MPI's. The caller begins it; one thread waits for it, in issue
    order.
    """

    tensor_cut = None

    def __init__(self, transport: ReducingTransport, context: RankContext, job: str) -> None:
        self._context, self._transport = context, transport
        self._waiting = SerialExecutor(transport.name)
        self.completing = CompletionThreads(job)
        self._broken: HostlibError | None = None
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        try:
            if device_of(tensor) is not None:
                raise HostlibError(
                    f"{self._transport.name} sums tensors in the host's memory, not those on {tensor.device}"
                )
            request = host_request(tensor, wire_dtype(tensor, average), average, future)
        except HostlibError as error:
            refuse(future, error)
            return future
        since, pending = time.monotonic(), self._transport.allreduce(request.values)
        self._waiting.put(lambda: self._finish(pending, request, since))
        return future

    def _finish(self, pending: Pending, request: ReduceRequest, since: float) -> None:
        try:
            if self._broken is None:
                pending.wait()
                if request.average:
                    request.values.div_(self._context.world_size)
                request.deliver()
        except Exception as error:
            self._broken = self._context.explain(since, error)
        self.completing.put(partial(request.end, self._broken))

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._waiting.close(self._context.deadline_s if graceful else CLOSE_S)
        self.completing.close(CLOSE_S)


class NcclCollective:
    """NCCL's own all-reduce of CUDA tensors. On errors, NCCL's watchdog reports and ends the process."""

    tensor_cut = None

    def __init__(self, context: RankContext) -> None:
        self._nccl = context.nccl()
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        try:
            wire_dtype(tensor, average)
            if tensor.device.type != "cuda":
                raise HostlibError(f"nccl only sums CUDA tensors, but this one is on {tensor.device.type.upper()}")
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM  # type: ignore[assignment]
            work = self._nccl.allreduce([tensor], options)
        except (HostlibError, RuntimeError, ValueError) as error:
            refuse(future, error if isinstance(error, HostlibError) else RunError(first_line(error)))
            return future
        summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return summed

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._nccl.shutdown() if graceful else self._nccl.abort()


LibraryCollective = GlooCollective | TransportCollective | NcclCollective | SharedMemoryCollective
