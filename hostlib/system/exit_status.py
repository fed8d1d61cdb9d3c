"""End commands with one line per error and an exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Callable

import click

from hostlib.system import interrupts
from hostlib.system.extras import what_to_install

FAILED, INTERRUPTED = 1, interrupts.EXIT_CODE


def end_with(
    command: Callable[[], object], *errors: type[Exception], at_once: bool | Callable[[], bool] = False
) -> None:
    """Run a command; turn its errors into one line and an exit code.

    This includes system errors, such as a full disk. With `--json`, standard output gets {"error": "..."} as well.

    Args:
        errors: netfold's own error types, which exit with code 1.
        at_once: exit without running Python's cleanup, or a function to be asked after a failure. Needed when library
            threads may still wait for a peer that is gone.

    Raises:
        SystemExit: the command failed and `at_once` is false.
    """
    try:
        command()
        sys.stdout.flush()
    except BaseException as error:
        code = INTERRUPTED if interrupts.came() else _exit_code(error, errors)
        if code is None:
            raise
        if code == INTERRUPTED:
            _say("interrupted", "interrupted")
        # While the error keeps what it has interrupted: gRPC waits for a call to end before that may be freed.
        if code and (at_once() if callable(at_once) else at_once):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):  # the reader is gone
                    stream.flush()
            os._exit(code)
    else:
        return
    if code:
        raise SystemExit(code)


def _exit_code(error: BaseException, errors: tuple[type[Exception], ...]) -> int | None:
    """Say what went wrong in one line.

    Returns:
        Its exit code; None for a defect of netfold's own, whose traceback is wanted.
    """
    if isinstance(error, click.exceptions.Abort | KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else ""
        hint = f"; see `{where} --help`" if where else ""
        _say(f"{_one_line(_message_of(error))}{hint}")
        return error.exit_code
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, errors):
        _say(str(error))
        return FAILED
    if isinstance(error, ModuleNotFoundError):
        line = what_to_install(error)
        if line is not None:
            _say(line)
        return None if line is None else FAILED
    if isinstance(error, BrokenPipeError):  # as click does: `... | head` has read enough
        _write_no_more()
        return FAILED
    if isinstance(error, MemoryError):
        _say("out of memory")
        return FAILED
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        _say(f"{os.strerror(error.errno)}: raise the limit (ulimit -n)")
        return FAILED
    if isinstance(error, OSError):
        _write_no_more()
        what = "cannot write the output" if error.filename is None else error.filename
        _say(f"{what}: {error.strerror or error}")
        return FAILED
    return None


def _say(error: str, line: str | None = None) -> None:
    """Say what went wrong: a line on standard error and, with `--json`, a document on standard output."""
    click.echo(line or f"error: {_printable(error)}", err=True)
    words = sys.argv[1:]
    if "--json" in words[: words.index("--") if "--" in words else None]:
        with contextlib.suppress(OSError):  # nobody reads it
            click.echo(json.dumps({"error": error}))
            sys.stdout.flush()


def _printable(text: str) -> str:
    """A user's text may have line breaks and escape sequences, which a terminal would obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _message_of(error: click.ClickException) -> str:
    """click's words; of a wrong value, the option and what is wrong with it."""
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        hint = error.param.get_error_hint(error.ctx) if error.param is not None else error.param_hint
        if isinstance(hint, str):
            flag = hint.replace("'", "").split(" / ")[-1]
            return f"{flag}: {error.message}"
    return error.format_message()


def _one_line(message: str) -> str:
    """Click's message, which may end with a full stop or list its choices on lines of their own."""
    return " ".join(message.split()).removesuffix(".")


def _write_no_more() -> None:
    """Discard buffered output, which would fail again when Python exits."""
    sys.stdout = io.StringIO()
