"""Libraries' own all-reduces, as yardsticks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.device import Device, device_of
from hostlib.device_sum import DeviceSums
from hostlib.errors import HostlibError, RunError
from hostlib.group import Group
from hostlib.peers import MpiPeers, Pending, gloo_reason
from hostlib.registry import Mechanism
from hostlib.sequence import Sequence
from hostlib.shared import SharedMemoryCollective
from hostlib.summand import Summand, host_summand, refuse, travelling

CLOSE_S = 2.0


def library_collective(mechanism: Mechanism, group: Group) -> LibraryCollective:
    """The yardstick of a name.

    Raises:
        HostlibError: its library is not here.
    """
    peers = group.hosts if isinstance(group.hosts, MpiPeers) else None
    require_library(mechanism, "gloo" if peers is None else "mpi")
    if mechanism.one_host:
        return SharedMemoryCollective(group)
    if mechanism.device is not None:
        return NcclCollective(group)
    if mechanism.transport is not None and peers is not None:
        return MpiCollective(peers, group)
    return GlooCollective(group)


def require_library(mechanism: Mechanism, transport: str) -> None:
    """Raises HostlibError: the mechanism is a library's own, and that is not here."""
    mechanism.require_transport(transport)
    if mechanism.device is None:
        return
    lacks = None if torch.cuda.is_available() else "a CUDA device, and there is none here"
    if not dist.is_nccl_available():
        lacks = "torch built with NCCL, and this one is not"
    if lacks is not None:
        raise HostlibError(f"{mechanism.name} needs {lacks}; see `hostlib mechanisms` for others")


class GlooCollective:
    """Gloo's all-reduce, as it is."""

    elements_per_packet = 0

    def __init__(self, group: Group) -> None:
        self._group = group
        self._devices: dict[Device, DeviceSums] = {}
        self._starting = Sequence("gloo")
        self.failures: list[dict[str, Any]] = []

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            travelling(tensor, average)
            device = device_of(tensor)
        except HostlibError as wrong:
            future.set_exception(wrong)
            return future
        since = time.monotonic()
        if device is None and self._starting.idle:
            return self._sum(tensor, average, since)
        if device is None:
            summand = Summand(tensor, average, lambda: future.set_result(tensor), lambda wrong: refuse(future, wrong))
            self._starting.put(lambda: self._wait_for(summand, since))
            return future
        future = device.future()
        if device not in self._devices:
            self._devices[device] = DeviceSums(device, self._group.world_size, None, lambda codes: None)
        go_on = self._devices[device].ask(tensor, tensor.dtype, average, future)
        self._starting.put(lambda: go_on(lambda summand: self._wait_for(summand, since)))
        return future

    def _sum(self, tensor: Tensor, average: bool, since: float) -> torch.futures.Future[Tensor]:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        work = self._group.gloo.allreduce([tensor], options)

        def finish(done: torch.futures.Future[Any]) -> Tensor:
            try:
                done.value()
            except Exception as wrong:
                raise self._group.explain(since, wrong) from wrong
            return tensor.div_(self._group.world_size) if average else tensor

        return work.get_future().then(finish)  # type: ignore[no-any-return]

    def _wait_for(self, summand: Summand, since: float) -> None:
        try:
            self._sum(summand.values, summand.average, since).wait()
            summand.deliver()
        except Exception as wrong:
            summand.refuse(wrong if isinstance(wrong, HostlibError) else RunError(gloo_reason(wrong)))

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._starting.close(self._group.deadline_s if graceful else CLOSE_S)


class MpiCollective:
    """MPI's non-blocking all-reduce: begun by the caller, waited for by one thread, in the order of asking."""

    elements_per_packet = 0

    def __init__(self, peers: MpiPeers, group: Group) -> None:
        self._group, self._peers = group, peers
        self._waiting = Sequence("mpi")
        self._broken: HostlibError | None = None
        self.failures: list[dict[str, Any]] = []

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            if device_of(tensor) is not None:
                raise HostlibError(f"mpi sums tensors in the host's memory, not those on {tensor.device}")
            summand = host_summand(tensor, travelling(tensor, average), average, future)
        except HostlibError as wrong:
            refuse(future, wrong)
            return future
        since, pending = time.monotonic(), self._peers.allreduce(summand.values)
        self._waiting.put(lambda: self._finish(pending, summand, since))
        return future

    def _finish(self, pending: Pending, summand: Summand, since: float) -> None:
        try:
            if self._broken is None:
                pending.wait()
                if summand.average:
                    summand.values.div_(self._group.world_size)
                summand.deliver()
        except Exception as wrong:
            self._broken = self._group.explain(since, wrong)
        if self._broken is not None:
            summand.refuse(self._broken)

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._waiting.close(self._group.deadline_s if graceful else CLOSE_S)


class NcclCollective:
    """NCCL's all-reduce of CUDA tensors, as it is: of what goes wrong, its own watchdog tells, and ends the process."""

    elements_per_packet = 0

    def __init__(self, group: Group) -> None:
        self._nccl = group.nccl()
        self.failures: list[dict[str, Any]] = []

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            travelling(tensor, average)
            if tensor.device.type != "cuda":
                raise HostlibError(f"nccl sums CUDA tensors alone, and this one is on {tensor.device.type.upper()}")
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
            work = self._nccl.allreduce([tensor], options)
        except (HostlibError, RuntimeError, ValueError) as wrong:
            refuse(future, wrong if isinstance(wrong, HostlibError) else RunError(gloo_reason(wrong)))
            return future
        return work.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._nccl.shutdown() if graceful else self._nccl.abort()


LibraryCollective = GlooCollective | MpiCollective | NcclCollective | SharedMemoryCollective
