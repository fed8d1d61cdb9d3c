"""Sum on one host in shared memory: ranks write their values, and each rank adds a share of them, in rank order.

Gloo's barrier separates writing from adding, and adding from reading. A dead rank is detected as in any other
collective. The memory has no name, so killed processes leave nothing behind.

Source: "Involving CPUs into Multi-GPU Deep Learning", section 3.1 (accumulation on the host is done in parallel).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hostlib.errors import HostlibError, RunError
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of
from hostlib.staging.request import ReduceRequest, host_request, wire_dtype
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.agreement import Agreement
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse

CLOSE_S = 2.0
AREA_BYTES = 4 << 20  # per rank: larger tensors are summed in parts


class SharedMemoryCollective:
    """Sums the tensors of one host's ranks in shared memory. float16 and bfloat16 are added as float32.

    Attributes:
        accumulation_ns, broadcast_ns: total time from values to sums, and from sums back to tensors.

    Raises:
        HostlibError: the ranks are not on one host, or it has no such memory.
    """

    tensor_cut = None

    def __init__(self, context: RankContext, job: str) -> None:
        self._context = context
        self._areas = shared_areas(context)
        self._devices: dict[Device, DeviceReduction] = {}
        self._agreement = Agreement(context)
        self._adding = SerialExecutor("shm")
        self.completing = CompletionThreads(job)
        self._broken: Exception | None = None
        self.accumulation_ns = self.broadcast_ns = 0
        self.failures: list[dict[str, Any]] = []

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        try:
            dtype, device, since = wire_dtype(tensor, average), device_of(tensor), time.monotonic()
            if device is None:
                request = host_request(tensor, dtype, average, future)
                self._adding.put(lambda: self._add(request, since))
            else:
                future = device.future()
                if device not in self._devices:
                    self._devices[device] = DeviceReduction(device, self._context.world_size, None, lambda codes: None)
                go_on = self._devices[device].ask(tensor, dtype, average, future)
                self._adding.put(lambda: go_on(lambda request: self._add(request, since)))
        except HostlibError as error:
            refuse(future, error)
        return future

    def _add(self, request: ReduceRequest, since: float) -> None:
        try:
            if self._broken is None:
                self._agreement.confirm(request.values.numel(), request.values.dtype, request.average)
                self._add_parts(request.values.view(-1), request.average)
                request.deliver()
        except Exception as error:
            self._broken = error if isinstance(error, HostlibError) else self._context.explain(since, error)
        self.completing.put(partial(request.end, self._broken))

    def _add_parts(self, values: Tensor, average: bool) -> None:
        areas = [area.view(values.dtype) for area in self._areas]
        *inputs, total = areas
        for part in values.split(len(total)):
            begin_ns = time.perf_counter_ns()
            inputs[self._context.rank][: len(part)] = part
            self._meet()
            self._add_share(inputs, total, len(part), average)
            self._meet()
            added_ns = time.perf_counter_ns()
            part.copy_(total[: len(part)])
            self.accumulation_ns += added_ns - begin_ns
            self.broadcast_ns += time.perf_counter_ns() - added_ns

    def _add_share(self, inputs: list[Tensor], total: Tensor, size: int, average: bool) -> None:
        rank, ranks = self._context.rank, len(inputs)
        mine = slice(rank * size // ranks, (rank + 1) * size // ranks)
        share = total[mine].copy_(inputs[0][mine])
        for other in inputs[1:]:
            share += other[mine]
        if average:
            share /= ranks

    def _meet(self) -> None:
        # The barrier in between ensures that all ranks have read this sum before the next values are written.
        self._context.gloo.barrier().wait()

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._adding.close(self._context.deadline_s if graceful else CLOSE_S)
        self.completing.close(CLOSE_S)


def shared_areas(context: RankContext) -> list[Tensor]:
    """Map one area of uint8 for each rank's values and, last, one for their sum, in memory that all ranks share.

    Rank 0 creates the memory; the others open it through rank 0's file descriptors.

    Raises:
        HostlibError: see SharedMemoryCollective.
    """
    size = (context.world_size + 1) * AREA_BYTES
    with contextlib.ExitStack() as open_files:
        mine = -1
        if context.rank == 0 and hasattr(os, "memfd_create"):
            mine = os.memfd_create("netfold-shm")
            open_files.callback(os.close, mine)
            os.ftruncate(mine, size)
        everybody = _gathered(context, [_host(), os.getpid(), mine])
        elsewhere = [rank for rank, (host, _, _) in enumerate(everybody) if host != everybody[0][0]]
        if elsewhere:
            raise RunError(
                f"shm is for ranks of one host (and one network namespace), but rank {elsewhere[0]} is not on that of "
                "rank 0; legal are the mechanisms that send messages: see `hostlib mechanisms`"
            )
        mapped, why = None, "memfd_create(2) needs Linux"
        if everybody[0][2] >= 0:
            try:
                mapped = _mapped(everybody[0][1], everybody[0][2], size)
            except OSError as error:
                why = f"rank {context.rank} cannot map it: {error.strerror}"
        # Rank 0 keeps it open until all ranks have tried to map it; if one of them failed, all raise.
        if not all(there for (there,) in _gathered(context, [mapped is not None])) or mapped is None:
            raise RunError(f"shm has no shared memory here: {why if mapped is None else 'another rank cannot map it'}")
    return list(torch.frombuffer(mapped, dtype=torch.uint8).split(AREA_BYTES))


def _mapped(process: int, number: int, size: int) -> mmap.mmap:
    with open(f"/proc/{process}/fd/{number}", "r+b") as file:
        return mmap.mmap(file.fileno(), size)


def _gathered(context: RankContext, mine: list[int]) -> list[list[int]]:
    """Gather the ranks' numbers: one list per rank."""
    values = torch.tensor(mine, dtype=torch.int64)
    everybody = [torch.empty_like(values) for _ in range(context.world_size)]
    context.gloo.allgather([everybody], [values]).wait()
    return [each.tolist() for each in everybody]


def _host() -> int:
    """Return a number that the processes of one host have in common.

    Network namespaces count as hosts, because netfold emulates hosts with them; and process ids are only valid within a
    host.
    """
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("net", "pid") if os.path.exists("/proc/self/ns")]
    boot = Path("/proc/sys/kernel/random/boot_id")
    return zlib.crc32(f"{boot.read_text() if boot.exists() else ''}{namespaces}".encode())
