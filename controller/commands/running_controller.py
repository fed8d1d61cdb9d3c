"""The controller that a state directory is of, and what it says over its API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from controller.errors import ControllerError, StateError
from controller.state_file import State
from hostlib.system.http_client import HttpError, call


def running_state(state_dir: Path) -> State:
    """The state of a controller that is running.

    Raises:
        StateError: none is; the message says what is left of it.
    """
    state = State.read(state_dir)
    if state is None:
        raise StateError("no controller is running (controller start)")
    if not state.controller.alive:
        alive = [f"{name} (pid {process.pid})" for name, process in state.processes.items() if process.alive]
        raise StateError(
            f"the controller (pid {state.controller.pid}) has died"
            + (f"; {', '.join(alive)} still running" if alive else "")
            + ": controller start takes over, controller stop cleans up"
        )
    return state


def ask(state_dir: Path, path: str, method: str = "GET") -> dict[str, Any]:
    """What the running controller answers its operator at a path of its API.

    Raises:
        ControllerError: none is running, or it refused.
    """
    try:
        state = running_state(state_dir)
        return call(method, state.http, path, token=state.operator, authority=state.authority)
    except HttpError as error:
        raise ControllerError(str(error)) from error


def print_json(answer: Any) -> None:
    click.echo(json.dumps(answer, indent=2))
