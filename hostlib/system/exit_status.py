"""How a command ends: with one line for what went wrong, and the exit code that says which it was."""

from __future__ import annotations

import contextlib
import io
import json
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
    """Run a command; what goes wrong with it becomes one line and an exit code: also what the system refuses, such as a
    full disk. With `--json`, standard output gets {"error": "..."} as well.

    Args:
        errors: netfold's own, which end it with exit code 1.
        at_once: end without Python's own end, or whether to, asked when it has failed. Threads of a library may still wait
            for a peer that is gone.

    Raises:
        SystemExit: it did not end well, unless `at_once`.
    """
    code = 0
    try:
        command()
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = _failed("interrupted", "interrupted", INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = FAILED
    except click.ClickException as error:
        code = _failed(_line_of(error))
    except click.exceptions.Exit as done:
        code = done.exit_code
    except errors as error:
        code = _failed(str(error))
    except ModuleNotFoundError as error:
        line = what_to_install(error)
        if line is None:
            raise
        code = _failed(line)
    except BrokenPipeError:  # as click has it: `... | head` had enough
        _write_no_more()
        code = FAILED
    except OSError as error:
        _write_no_more()
        what = "cannot write the output" if error.filename is None else error.filename
        code = _failed(f"{what}: {error.strerror or error}")
    if code and (at_once() if callable(at_once) else at_once):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(code)
    if code:
        raise SystemExit(code)


def _failed(error: str, line: str | None = None, code: int = FAILED) -> int:
    """Say what went wrong: a line on standard error and, with `--json`, a document on standard output.

    Returns:
        The exit code.
    """
    click.echo(line or f"error: {error}", err=True)
    words = sys.argv[1:]
    if "--json" in words[: words.index("--") if "--" in words else None]:
        with contextlib.suppress(OSError):  # nobody reads it
            click.echo(json.dumps({"error": error}))
            sys.stdout.flush()
    return code


def _line_of(error: click.ClickException) -> str:
    """click's words, with the option alone in front where a value is wrong."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        hint = error.param.get_error_hint(error.ctx) if error.param is not None else error.param_hint
        if isinstance(hint, str):
            named = hint.replace("'", "").split(" / ")[-1]
            return f"{named}: {error.message}"
    return error.format_message()


def _write_no_more() -> None:
    """What is still to be written would fail again when Python ends."""
    sys.stdout = io.StringIO()


def interrupt_on(*numbers: signal.Signals) -> None:
    """Let these signals end a command as Ctrl-C does, so that it stops what it has started."""
    for number in numbers:
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
