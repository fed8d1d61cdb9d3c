"""How often threads of this process have slept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil


def threads() -> set[int]:
    """The kernel's numbers of all threads there are."""
    return {each.id for each in psutil.Process().threads()}


def times_asleep(threads: Iterable[int]) -> int:
    """How often these have given up their core of themselves, together."""
    total = 0
    for thread in threads:
        status = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
        (count,) = (line.split()[1] for line in status if line.startswith("voluntary_ctxt_switches:"))
        total += int(count)
    return total
