"""Ctrl-C: known to have come, whatever a library makes of it, and kept from processes that are being started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 130  # 128 + SIGINT, as shells have it

_came = False


def interrupt_on(*numbers: signal.Signals) -> None:
    """Let these signals raise KeyboardInterrupt from now on, as Ctrl-C does, and have came() remember it."""
    for number in numbers:
        signal.signal(number, _interrupt)


def came() -> bool:
    """Whether such a signal came. numpy, for one, turns the KeyboardInterrupt of its import into an ImportError."""
    return _came


@contextmanager
def blocked() -> Iterator[None]:
    """Hold SIGINT back until the end of the block. Processes started within never see Ctrl-C: whoever starts them ends
    them, and their Python would answer with a traceback while it imports.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(*_: object) -> None:
    global _came
    _came = True
    raise KeyboardInterrupt
