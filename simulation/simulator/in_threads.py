"""Several plays at a time: the kernel computes without the interpreter's lock, which is most of a play."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MOST = 4  # threads: what Python does between plays is done by one at a time
Item = TypeVar("Item")
Value = TypeVar("Value")


def in_threads(function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
    """Call a function with each item; results are in the order of the items.

    Raises what the first call to fail, in that order, raises. No further call begins then, or after Ctrl-C.
    """
    items = list(items)
    threads = min(MOST, len(os.sched_getaffinity(0)), len(items))
    if threads <= 1:
        return [function(item) for item in items]
    executor = ThreadPoolExecutor(threads, "play")
    try:
        return list(executor.map(function, items))
    finally:
        executor.shutdown(cancel_futures=True)
