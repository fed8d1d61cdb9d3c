"""Facts about this machine: CPU, cores, memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

BUSY = 0.9  # share of a core, or of all: with more in use, what is measured may be the machine, not a network on it
SHORT_S = 0.1  # CPU seconds: the kernel counts in steps of 10 ms


def cpu_name() -> str:
    """The CPU's name from /proc/cpuinfo (psutil has none); else Python's."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """Number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[None]:
    """Have this thread, and those that it starts meanwhile, run on some cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def memory_gib() -> float:
    """Total memory in GiB."""
    return round(psutil.virtual_memory().total / 2**30, 1)


def process_cpu_seconds(pid: int) -> float:
    """CPU seconds, user and system, of a process and its children; 0 once it is gone."""
    try:
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(each.user + each.system for each in times)


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds of all cores since boot: busy, and total."""
    times = psutil.cpu_times()
    total = times.user + times.nice + times.system + times.idle + times.iowait + times.irq + times.softirq + times.steal
    return total - times.idle - times.iowait, total


def busy_share(before: tuple[float, float]) -> float | None:
    """Share of all cores' time in use since cpu_seconds() was `before`, to three digits; None if that is too short ago."""
    (busy, total), (busy_before, total_before) = cpu_seconds(), before
    return None if total - total_before < SHORT_S else round((busy - busy_before) / (total - total_before), 3)
