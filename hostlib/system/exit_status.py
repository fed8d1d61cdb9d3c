"""How a command ends: with one line for what went wrong, and the exit code that says which it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import click

FAILED, INTERRUPTED = 1, 130
NOBODY_READS = 128 + signal.SIGPIPE  # what a shell calls a program that wrote to `head` after that had enough


def end_with(command: Callable[[], object], *errors: type[Exception], at_once: bool = False) -> None:
    """Run a command; what goes wrong with it becomes one line and an exit code: also what the system refuses, such as a
    full disk.

    Args:
        errors: netfold's own, which end it with exit code 1.
        at_once: end without Python's own end. Threads of a library may still wait for a peer that is gone.

    Raises:
        SystemExit: it did not end well, unless `at_once`.
    """
    code = 0
    try:
        command()
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except errors as error:
        click.echo(f"error: {error}", err=True)
        code = FAILED
    except BrokenPipeError:
        _write_no_more()
        code = NOBODY_READS
    except OSError as error:
        _write_no_more()
        what = "cannot write the output" if error.filename is None else error.filename
        click.echo(f"error: {what}: {error.strerror or error}", err=True)
        code = FAILED
    if code and at_once:
        sys.stderr.flush()
        os._exit(code)
    if code:
        raise SystemExit(code)


def _write_no_more() -> None:
    """What is still to be written would fail again when Python ends."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115: until the process ends


def interrupt_on(*numbers: signal.Signals) -> None:
    """Let these signals end a command as Ctrl-C does, so that it stops what it has started."""
    for number in numbers:
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
