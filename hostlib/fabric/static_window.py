"""A window of a fixed size: how many packets a lane has outstanding, however many are lost."""

from __future__ import annotations

import os

from hostlib.errors import RunError

VARIABLE = "NETFOLD_WINDOW"


def require_window(what: str, window: int | str, slots: int) -> int:
    """Check a number of packets against the slots of a pool, and return it. Raises RunError, with `what` as the subject."""
    text = str(window)
    # int() also takes signs, 1_000 and the digits of other scripts.
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= number <= slots:
        shown = repr(window) if isinstance(window, str) else window
        raise RunError(f"{what} must be a whole number from 1 to {slots}, the slots of a lane, not {shown}")
    return number


def static_window(slots: int) -> int:
    """The window that NETFOLD_WINDOW names, for pools of so many slots; 0 where it is unset: one that follows losses.

    Raises:
        RunError: it is no such number.
    """
    text = os.environ.get(VARIABLE)
    return 0 if text is None else require_window(VARIABLE, text, slots)
