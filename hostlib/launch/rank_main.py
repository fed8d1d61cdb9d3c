"""Entry points of one rank's process."""

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
    """`python -m` of a module that only a command starts, once for each rank.

    Args:
        part: of the options' text, the surroundings and what events are told to; returns the result.
    """
    run_to_its_end(lambda: _part(command, part))


def run_to_its_end(command: Callable[[], object]) -> None:
    """A command as all of this process."""
    end_with(command, HostlibError, at_once=True)
    # Gloo's threads may still wait for a peer that is gone: nothing of this process is needed any more.
    sys.stdout.flush()
    os._exit(0)


def _part(command: str, part: Part) -> None:
    from hostlib.transport.launch_environment import LaunchEnvironment

    here = LaunchEnvironment.from_environment()
    # Taken out: where it is long, no program that this process starts could have it in its environment.
    options = os.environ.pop("NETFOLD_RANK_OPTIONS", None)
    if options is None:
        raise RunError(f"this is one rank of `{command}`: run that")

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    try:
        result = part(options, here, tell)
    except HostlibError as error:
        # Beside the line for a person: what the launcher raises is of the same type.
        click.echo(json.dumps({"event": "failed", "error": error.as_json()}))
        raise
    tell({"event": "result", "result": result})
