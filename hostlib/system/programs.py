"""Entry points of the commands. Each imports its command under its own handling of Ctrl-C."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from signal import SIG_DFL, SIGINT, signal

from hostlib.system import interrupts


def netfold() -> None:
    _run("netfold.cli")


def hostlib() -> None:
    _run("hostlib.cli")


def simulation() -> None:
    _run("simulation.cli")


def emulation() -> None:
    _run("emulation.cli")


def controller() -> None:
    _run("controller.cli")


def simple_switch() -> None:
    _run("emulation.simple_switch")


def _run(module: str) -> None:
    """Import a command and run it.

    Raises:
        SystemExit: it failed or was interrupted.
    """
    interrupts.interrupt_on(SIGINT)
    _have_streams()
    try:
        import_module(module).run()
    except BaseException as error:
        if isinstance(error, SystemExit) or not interrupts.came():
            raise
        sys.stderr.write("interrupted\n")
        raise SystemExit(interrupts.EXIT_CODE) from None
    finally:
        signal(SIGINT, SIG_DFL)  # While Python ends, KeyboardInterrupt would be a traceback.


def _have_streams() -> None:
    """Give a command that was started with closed streams (`>&-`) others, and let no character stop it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # an arrow is a question mark in ASCII
