"""`controller stop`: the end of a controller and its switches."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click

from controller.commands.state_dir import state_dir_option
from controller.errors import StateError
from controller.primacy import Holder, Primacy
from controller.state_file import Standby, State
from controller.state_store import STATE_STORE, StateStore
from hostlib.system.command import Command, json_option
from hostlib.system.process import Process

MOST_LOOKS = 10


@click.command(cls=Command)
@state_dir_option
@json_option
def stop(state_dir: Path, as_json: bool) -> None:
    """Stop the controller, its standbys, and the switches it started, also if the controller itself has died."""
    before = State.read(state_dir)
    switches = {} if before is None else {name: each for name, each in before.processes.items() if each.alive}
    alive = _stop_controllers(state_dir)
    # The controller takes its switches with it; one that was just taking over may have left them, or started others.
    after = State.read(state_dir)
    switches |= {} if after is None else {name: each for name, each in after.processes.items() if each.alive}
    if before is None and not alive:
        raise StateError("no controller is running")
    for name, process in switches.items():
        process.stop()
        alive.append((name, process.pid))
    State.forget(state_dir)
    if (state_dir / STATE_STORE).exists():
        with contextlib.closing(StateStore(state_dir)) as store:
            store.forget_jobs()
    if as_json:
        click.echo(json.dumps({"stopped": [{"name": name, "pid": pid} for name, pid in alive]}))
        return
    stopped = [f"{name} (pid {pid})" for name, pid in alive]
    click.echo(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running any more; state file removed")


def _stop_controllers(state_dir: Path) -> list[tuple[str, int]]:
    """Stop all controllers of a state folder; returns what they are called, and their pids.

    Raises:
        StateError: there is always another one.
    """
    stopped: list[tuple[str, int]] = []
    for _ in range(MOST_LOOKS):
        # Standbys first: they would take over. One of them may be doing that, so look again after each.
        found = _controllers(state_dir)
        if not found:
            return stopped
        for name, process in found.items():
            process.stop()
            stopped.append((name, process.pid))
    raise StateError("controllers are started again and again: stop what starts them (systemctl stop) first")


def _controllers(state_dir: Path) -> dict[str, Process]:
    """The processes that are alive: standbys, then the primary, as far as each is recorded."""
    found = {f"standby at {each.http}": each.process for each in Standby.all(state_dir)}
    state = State.read(state_dir)
    primary = None if state is None else state.controller
    # One that has just taken over is not in that file yet.
    with contextlib.suppress(StateError):
        holder = _holder(state_dir)
        if holder is not None and holder.here:
            primary = holder.process
    if primary is not None and primary.alive and primary not in found.values():
        found["controller"] = primary
    return found


def _holder(state_dir: Path) -> Holder | None:
    if not (state_dir / STATE_STORE).exists():
        return None
    with contextlib.closing(Primacy(state_dir)) as primacy:
        return primacy.holder()


PLACE = 30
COMMANDS = (stop,)
