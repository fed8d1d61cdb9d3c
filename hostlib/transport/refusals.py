"""What torch's futures were refused with: of an exception torch hands on only a RuntimeError that quotes its text."""

from __future__ import annotations

from collections import deque
from typing import Any

from hostlib.errors import HostlibError

LATEST = 16  # errors: whoever waits sees the first of them
_remembered: deque[HostlibError] = deque(maxlen=LATEST)


def refuse(future: Any, error: Exception) -> None:
    """Let a torch.futures.Future hold an error. A tensor in several pieces may be refused more than once."""
    remember(error)
    if not future.done():
        future.set_exception(error)


def remember(error: Exception) -> None:
    """An error that a function raises which torch calls."""
    if isinstance(error, HostlibError):
        _remembered.append(error.restated(str(error)))  # Without the frames that it went through, and their tensors.


def quoted(text: str) -> HostlibError | None:
    """The latest error whose line is in a text of torch's."""
    return next((error for error in reversed(_remembered) if str(error) in text), None)
