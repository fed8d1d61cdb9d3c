"""Memory that the ranks of one host share, and how a rank that waits there notices that another is gone.

The memory has no name, so killed processes leave nothing behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hostlib import _engine
from hostlib.errors import RunError
from hostlib.system.machine import usable_cores
from hostlib.system.process import Process
from hostlib.transport.agreement import TYPES, difference
from hostlib.transport.rank_context import RankContext

PART_BYTES = 1 << 18  # of a tensor; larger ones are summed in parts
LOOKS_UP_S = 0.2  # from waiting for other ranks, to see whether they are there


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where the ranks are.

    Attributes:
        ranks: of each host; hosts in the order of their first ranks.
        mine: the ranks of this host.
        processes: of this host's ranks.
    """

    ranks: tuple[tuple[int, ...], ...]
    mine: tuple[int, ...]
    processes: tuple[Process, ...]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each host."""
        return tuple(ranks[0] for ranks in self.ranks)


def find_hosts(context: RankContext) -> Hosts:
    """Find out which ranks share a host; all ranks make this call."""
    everybody = _gathered(context, [_host(), os.getpid()])
    hosts: dict[int, list[int]] = {}
    for rank, (host, _) in enumerate(everybody):
        hosts.setdefault(host, []).append(rank)
    mine = hosts[everybody[context.rank][0]]
    processes = tuple(Process.of(everybody[rank][1]) or Process(0, -1) for rank in mine)
    return Hosts(tuple(map(tuple, hosts.values())), tuple(mine), processes)


def share_memory(context: RankContext, hosts: Hosts, size: int) -> np.ndarray:
    """Map memory that this host's ranks share, uint8 (size,), zeros. All ranks of all hosts make this call.

    A host's first rank creates the memory; the others open it through that rank's file descriptors.

    Raises:
        RunError: a host has no such memory; on all ranks.
    """
    with contextlib.ExitStack() as open_files:
        own = -1
        if context.rank == hosts.mine[0] and hasattr(os, "memfd_create"):
            own = os.memfd_create("netfold-shm")
            open_files.callback(os.close, own)
            os.ftruncate(own, size)
        numbers = _gathered(context, [own])
        number, process = numbers[hosts.mine[0]][0], hosts.processes[0]
        mapped, why = None, "memfd_create(2) needs Linux"
        if number >= 0:
            try:
                mapped = _mapped(process.pid, number, size)
            except OSError as error:
                why = f"rank {context.rank} cannot map it: {error.strerror}"
        # The first rank keeps it open until all ranks have tried to map it; if one of them failed, all raise.
        if not all(there for (there,) in _gathered(context, [mapped is not None])) or mapped is None:
            raise RunError(f"shm has no shared memory here: {why if mapped is None else 'another rank cannot map it'}")
    return np.frombuffer(mapped, np.uint8)


class HostMeetings:
    """The meetings of one host's ranks in memory that they share, one tensor after the other; for one thread.

    Args:
        memory: of `bytes_for` the number of this host's ranks.
        failed: why this rank is to wait no longer, once it is not; asked while it waits.

    Attributes:
        sums: where the ranks meet; begin a tensor there, then `finish` it.
    """

    def __init__(
        self,
        context: RankContext,
        hosts: Hosts,
        memory: np.ndarray,
        failed: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._context, self._hosts, self._failed = context, hosts, failed
        ranks = len(hosts.mine)
        place = hosts.mine.index(context.rank)
        self.sums = _engine.SharedSum(memory, place, ranks, PART_BYTES, ranks <= usable_cores())

    @staticmethod
    def bytes_for(ranks: int) -> int:
        return _engine.SharedSum.bytes(ranks, PART_BYTES)

    def finish(self) -> None:
        """Go on until the tensor that has been begun is done.

        Raises:
            RunError: the ranks do different things.
            RuntimeError: a rank has ended, or has neither come nor said that it will for the context's deadline.
        """
        sums = self.sums
        signs, moved = -1, time.monotonic()
        while not sums.go_on(LOOKS_UP_S):
            _require_same(sums.differing())
            if (error := self._failed()) is not None:
                raise error
            missing = sums.missing()
            if (now := sums.steps + sum(sums.beats())) != signs:
                signs, moved = now, time.monotonic()
            for place in missing:
                if place in sums.departed() or not self._hosts.processes[place].alive:
                    raise RuntimeError(f"rank {self._name(place)} has ended")
            if missing and time.monotonic() - moved > self._context.deadline_s:
                raise RuntimeError(f"rank {self._name(missing[0])} has not come for {self._context.deadline_s:g} s")

    def _name(self, place: int) -> int:
        return self._context.number(self._hosts.mine[place])


def _require_same(told: Sequence[tuple[int, bool, bool]]) -> None:
    """Refuse tensors that differ between ranks: elements, whether int32, whether averaged. Raises RunError."""
    tensors = [(elements, TYPES.index(torch.int32 if whole else torch.float32), mean) for elements, whole, mean in told]
    if tensors:
        most, least = ([pick(of_all) for of_all in zip(*tensors, strict=True)] for pick in (max, min))
        raise RunError(difference(most, least))


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
