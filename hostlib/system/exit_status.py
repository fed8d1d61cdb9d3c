"""End commands with one line per error and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable

import click

from hostlib.system.extras import what_to_install

FAILED, INTERRUPTED = 1, 130


def end_with(
    command: Callable[[], object], *errors: type[Exception], at_once: bool | Callable[[], bool] = False
) -> None:
    """Run a command; turn its errors into one line and an exit code. This includes system errors, such as a full disk.

    Args:
        errors: netfold's own error types, which exit with code 1.
        at_once: exit without running Python's cleanup, or a function to be asked after a failure. Needed when library
            threads may still wait for a peer that is gone.

    Raises:
        SystemExit: the command failed and `at_once` is false.
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
    except ModuleNotFoundError as error:
        line = what_to_install(error)
        if line is None:
            raise
        click.echo(f"error: {line}", err=True)
        code = FAILED
    except BrokenPipeError:  # as click does: `... | head` has read enough
        _write_no_more()
        code = FAILED
    except OSError as error:
        _write_no_more()
        what = "cannot write the output" if error.filename is None else error.filename
        click.echo(f"error: {what}: {error.strerror or error}", err=True)
        code = FAILED
    if code and (at_once() if callable(at_once) else at_once):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # the reader is gone
                stream.flush()
        os._exit(code)
    if code:
        raise SystemExit(code)


def _write_no_more() -> None:
    """Discard buffered output, which would fail again when Python exits."""
    sys.stdout = io.StringIO()


def interrupt_on(*numbers: signal.Signals) -> None:
    """Treat these signals like Ctrl-C, so that a command stops the processes it has started."""
    for number in numbers:
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
