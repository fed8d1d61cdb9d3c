"""Sum on one host in shared memory: ranks write their values, and each rank adds a share of them, in rank order.

hostlib/native/shared_memory/ has the sums. Here is what they need: the memory, and how a rank that is gone is noticed.
The memory has no name, so killed processes leave nothing behind.

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

import numpy as np
import torch
from torch import Tensor

from hostlib import _engine
from hostlib.errors import HostlibError, RunError
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of
from hostlib.staging.request import ReduceRequest, host_request, wire_dtype
from hostlib.system.machine import usable_cores
from hostlib.system.process import Process
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.agreement import TYPES, difference
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse

CLOSE_S = 2.0
PART_BYTES = 1 << 18  # of a tensor; larger ones are summed in parts
LOOKS_UP_S = 0.2  # from waiting for other ranks, to see whether they are there


class SharedMemoryCollective:
    """Sums the tensors of one host's ranks in shared memory. float16 and bfloat16 are added as float32.

    Raises:
        HostlibError: the ranks are not on one host, or it has no such memory.
    """

    tensor_cut = None

    def __init__(self, context: RankContext, job: str) -> None:
        self._context = context
        memory, self._processes = shared_memory(context, _engine.SharedSum.bytes(context.world_size, PART_BYTES))
        spins = context.world_size <= usable_cores()
        self._sums = _engine.SharedSum(memory, context.rank, context.world_size, PART_BYTES, spins)
        self._devices: dict[Device, DeviceReduction] = {}
        self._adding = SerialExecutor("shm")
        self.completing = CompletionThreads(job)
        self._broken: Exception | None = None
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

    @property
    def accumulation_ns(self) -> int:
        """Total time from values to sums."""
        return self._sums.summing_ns

    @property
    def broadcast_ns(self) -> int:
        """Total time from sums back to tensors."""
        return self._sums.reading_ns

    def _add(self, request: ReduceRequest, since: float) -> None:
        try:
            if self._broken is None:
                self._sum(request.values.view(-1), request.average, since)
                request.deliver()
        except Exception as error:
            self._broken = error if isinstance(error, HostlibError) else self._context.explain(since, error)
            self._sums.leave()
        self.completing.put(partial(request.end, self._broken))

    def _sum(self, values: Tensor, average: bool, since: float) -> None:
        self._sums.begin(values, average)
        steps, moved = -1, time.monotonic()
        while not self._sums.go_on(LOOKS_UP_S):
            _require_same(self._sums.differing())
            if self._sums.steps != steps:
                steps, moved = self._sums.steps, time.monotonic()
            missing = self._sums.missing()
            gone = [rank for rank in missing if rank in self._sums.departed() or not self._processes[rank].alive]
            if gone:
                raise RuntimeError(f"rank {gone[0]} has ended")
            if missing and time.monotonic() - moved > self._context.deadline_s:
                raise RuntimeError(f"rank {missing[0]} has not come for {self._context.deadline_s:g} s")

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        self._adding.close(self._context.deadline_s if graceful else CLOSE_S)
        self._sums.leave()
        self.completing.close(CLOSE_S)


def _require_same(told: list[tuple[int, bool, bool]]) -> None:
    """Refuse tensors that differ between ranks: elements, whether int32, whether averaged. Raises RunError."""
    tensors = [(elements, TYPES.index(torch.int32 if whole else torch.float32), mean) for elements, whole, mean in told]
    if tensors:
        most, least = ([pick(of_all) for of_all in zip(*tensors, strict=True)] for pick in (max, min))
        raise RunError(difference(most, least))


def shared_memory(context: RankContext, size: int) -> tuple[np.ndarray, list[Process]]:
    """Map memory that all ranks share, uint8 (size,), zeros; and the ranks' processes.

    Rank 0 creates the memory; the others open it through rank 0's file descriptors.

    Raises:
        HostlibError: see SharedMemoryCollective.
    """
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
        processes = [Process.of(process) for _, process, _ in everybody]
        if everybody[0][2] >= 0:
            try:
                mapped = _mapped(everybody[0][1], everybody[0][2], size)
            except OSError as error:
                why = f"rank {context.rank} cannot map it: {error.strerror}"
        # Rank 0 keeps it open until all ranks have tried to map it; if one of them failed, all raise.
        if not all(there for (there,) in _gathered(context, [mapped is not None])) or mapped is None:
            raise RunError(f"shm has no shared memory here: {why if mapped is None else 'another rank cannot map it'}")
    return np.frombuffer(mapped, np.uint8), [each or Process(0, -1) for each in processes]


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
