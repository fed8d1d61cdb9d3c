"""How a command ends: with one line for what went wrong, and the exit code that says which it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from hostlib.errors import HostlibError


def end_with(command: Callable[[], object]) -> None:
    """Run a command; errors of netfold become one line and exit code 1."""
    code = 0
    try:
        command()
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except HostlibError as wrong:
        click.echo(f"error: {wrong}", err=True)
        code = 1
    if code:
        sys.stderr.flush()
        os._exit(code)


def end_on_term() -> None:
    """SIGTERM ends a command as Ctrl-C does, so that it stops what it has started."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
