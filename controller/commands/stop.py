"""`controller stop`: the end of a controller and its switches."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click

from controller.commands.state_dir import state_dir_option
from controller.errors import StateError
from controller.state_file import Standby, State
from controller.state_store import STATE_STORE, StateStore
from hostlib.system.command import Command, json_option


@click.command(cls=Command)
@state_dir_option
@json_option
def stop(state_dir: Path, as_json: bool) -> None:
    """Stop the controller, its standbys, and the switches it started, also if the controller itself has died."""
    # Standbys first: they would take over.
    standbys = {f"standby at {each.http}": each.process for each in Standby.all(state_dir)}
    alive = {name: process.pid for name, process in standbys.items()}
    for process in standbys.values():
        process.stop()
    state = State.read(state_dir)
    if state is None and not alive:
        raise StateError("no controller is running")
    # The controller takes its switches with it; what was alive is what was stopped.
    living = {} if state is None else {"controller": state.controller, **state.processes}
    alive |= {name: process.pid for name, process in living.items() if process.alive}
    for process in living.values():
        process.stop()
    State.forget(state_dir)
    if (state_dir / STATE_STORE).exists():
        with contextlib.closing(StateStore(state_dir)) as store:
            store.forget_jobs()
    if as_json:
        click.echo(json.dumps({"stopped": [{"name": name, "pid": pid} for name, pid in alive.items()]}))
        return
    stopped = [f"{name} (pid {pid})" for name, pid in alive.items()]
    click.echo(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running any more; state file removed")


PLACE = 30
COMMANDS = (stop,)
