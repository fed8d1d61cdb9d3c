"""Entry points of a rank's process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hostlib.errors import HostlibError, RunError
from hostlib.system.exit_status import end_with

if TYPE_CHECKING:
    from hostlib.transport.launch_environment import LaunchEnvironment

Tell = Callable[[dict[str, Any]], None]
Part = Callable[[str, "LaunchEnvironment", Tell], dict[str, Any]]


def run_part(command: str, part: Part) -> None:
    """Run one rank: the entry point of a module that only a command starts.

    Args:
        command: the user's command, for the error message.
        part: takes the options' text, the launch environment and a function that reports events; returns the result.
    """
    run_to_its_end(lambda: _part(command, part))


def run_to_its_end(command: Callable[[], object]) -> None:
    """Run a command as the whole of this process."""
    end_with(command, HostlibError, at_once=True)
    # Gloo's threads may still wait for a peer that is gone, so exit without Python's cleanup.
    sys.stdout.flush()
    os._exit(0)


def _part(command: str, part: Part) -> None:
    from hostlib.transport.launch_environment import LaunchEnvironment

    here = LaunchEnvironment.from_environment()
    # Removed from the environment: a very long one would keep this process from starting other programs.
    options = os.environ.pop("NETFOLD_RANK_OPTIONS", None)
    if options is None:
        raise RunError(f"this module is one rank of `{command}`; run that command instead")

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    try:
        result = part(options, here, tell)
    except HostlibError as error:
        # In addition to the line for people: the launcher raises an error of the same type.
        click.echo(json.dumps({"event": "failed", "error": error.as_json()}))
        raise
    tell({"event": "result", "result": result})
