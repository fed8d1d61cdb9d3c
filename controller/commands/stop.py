"""`controller stop`: the end of a controller and its switches."""

from __future__ import annotations

from pathlib import Path

import click

from controller.commands.state_dir import state_dir_option
from controller.errors import StateError
from controller.state_file import State


@click.command()
@state_dir_option
def stop(state_dir: Path) -> None:
    """Stop the controller and the switches it started, also when the controller itself is dead already."""
    state = State.read(state_dir)
    if state is None:
        raise StateError("no controller is running")
    # The controller takes its switches with it; what was alive is what was stopped.
    living = {"controller": state.controller, **state.processes}
    stopped = [f"{name} (pid {process.pid})" for name, process in living.items() if process.alive]
    for process in living.values():
        process.stop()
    State.forget(state_dir)
    (state_dir / "jobs.json").unlink(missing_ok=True)
    click.echo(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running any more; state file removed")


PLACE = 30
COMMANDS = (stop,)
