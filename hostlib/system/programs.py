"""Entry points of the five commands. Each imports its command under its own handling of Ctrl-C."""

from __future__ import annotations

import sys
from importlib import import_module
from signal import SIG_DFL, SIGINT, signal

from hostlib.system import interrupts

INTERRUPTED = 130


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


def _run(module: str) -> None:
    """Import a command and run it.

    Raises:
        SystemExit: it failed or was interrupted.
    """
    interrupts.interrupt_on(SIGINT)
    try:
        import_module(module).run()
    except BaseException as error:
        if isinstance(error, SystemExit) or not interrupts.came():
            raise
        sys.stderr.write("interrupted\n")
        raise SystemExit(INTERRUPTED) from None
    finally:
        signal(SIGINT, SIG_DFL)  # While Python ends, KeyboardInterrupt would be a traceback.
