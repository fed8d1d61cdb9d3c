"""Recover exceptions from torch's futures, which only pass on a RuntimeError that quotes the exception's text."""

from __future__ import annotations

from collections import deque
from typing import Any

from hostlib.errors import HostlibError

LATEST = 16  # recent errors; the first of them is what waiters see
_remembered: deque[HostlibError] = deque(maxlen=LATEST)


def refuse(future: Any, error: Exception) -> None:
    """Set an error on a torch.futures.Future. A tensor in several pieces may be refused more than once."""
    remember(error)
    if not future.done():
        future.set_exception(error)


def remember(error: Exception) -> None:
    """Remember an error raised by a function that torch calls."""
    if isinstance(error, HostlibError):
        _remembered.append(error.restated(str(error)))  # Without its traceback, which would keep tensors alive.


def quoted(text: str) -> HostlibError | None:
    """The latest remembered error whose message occurs in a text of torch's."""
    return next((error for error in reversed(_remembered) if str(error) in text), None)
