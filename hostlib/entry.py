"""Entry points of one rank's process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hostlib.commands.ending import end_with
from hostlib.commands.train import rank_command
from hostlib.errors import RunError
from hostlib.options import TrainOptions

if TYPE_CHECKING:
    from hostlib.rank import Surroundings

Tell = Callable[[dict[str, Any]], None]
Part = Callable[[str, "Surroundings", Tell], dict[str, Any]]


def run_rank() -> None:
    """`python -m hostlib.train`: under `hostlib train` events go out as JSON lines, else as a person would read them."""
    if "NETFOLD_RANK_OPTIONS" in os.environ:
        run_part("hostlib train", _train)
    _run(lambda: rank_command(standalone_mode=False))


def run_part(command: str, part: Part) -> None:
    """`python -m` of a module that only a command starts, once for each rank.

    Args:
        part: of the options' text, the surroundings and what events are told to; returns the result.
    """
    _run(lambda: _part(command, part))


def _run(command: Callable[[], object]) -> None:
    end_with(command)
    # Gloo's threads may still wait for a peer that is gone: nothing of this process is needed any more.
    sys.stdout.flush()
    os._exit(0)


def _part(command: str, part: Part) -> None:
    from hostlib.rank import Surroundings

    here = Surroundings.from_environment()
    told = os.environ.get("NETFOLD_RANK_OPTIONS")
    if told is None:
        raise RunError(f"this is one rank of `{command}`: run that")

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    tell({"event": "result", "result": part(told, here, tell)})


def _train(told: str, here: Surroundings, tell: Tell) -> dict[str, Any]:
    from hostlib.train import train

    return train(TrainOptions.from_json(told), here, tell)
