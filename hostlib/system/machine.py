"""What this machine is."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil


def cpu_name() -> str:
    """The CPU's name as Linux gives it (psutil has none); else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """All the memory there is."""
    return round(psutil.virtual_memory().total / 2**30, 1)


def cpu_seconds() -> tuple[float, float]:
    """Of all cores since the start: busy ones, and all."""
    times = psutil.cpu_times()
    total = times.user + times.nice + times.system + times.idle + times.iowait + times.irq + times.softirq + times.steal
    return total - times.idle - times.iowait, total
