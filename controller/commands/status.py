"""`controller status`: what a controller is doing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from controller.commands.state_dir import state_dir_option
from controller.errors import ControllerError, StateError
from controller.state_file import State
from hostlib.system.command import Command, json_option
from hostlib.system.http_client import HttpError, controller_status
from hostlib.text.output import output


@click.command(cls=Command)
@state_dir_option
@json_option
def status(as_json: bool, state_dir: Path) -> None:
    """Show the state of the controller, its switches and its jobs."""
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
    try:
        described = controller_status(state.http)
    except HttpError as error:
        raise ControllerError(str(error)) from error
    described = {"http": state.http, "pid": state.controller.pid, **described}
    if as_json:
        click.echo(json.dumps(described, indent=2))
        return
    _print_status(described)


def _print_status(described: dict[str, Any]) -> None:
    console = output()
    console.print(f"controller {described['http']} (pid {described['pid']}), version {described['version']}")
    for switch in described["switches"]:
        console.print(
            f"{switch['name']:<10} {described['kind']}, {switch['program']}, P4Runtime {switch['p4rt']}, "
            + (f"under {switch['parent']}, " if switch["parent"] else "")
            + ("up" if switch["up"] else "[red]gone[/red]")
            + (f", restarted {switch['restarts']}x" if switch["restarts"] else ""),
            soft_wrap=True,
        )
    jobs = Table("job", "state", "epoch", "ranks", "slots", "slowest position", title="jobs", title_justify="left")
    for job in described["jobs"]:
        positions = [rank["position"] for rank in job["ranks"]]
        jobs.add_row(
            job["name"],
            job["state"],
            str(job["epoch"]),
            f"{len(job['ranks'])}/{job['world_size']}",
            ", ".join(f"{p['first_slot']}..{p['first_slot'] + p['slots'] - 1}" for p in job["pools"]),
            str(min(positions, default=0)),
        )
    console.print(jobs if described["jobs"] else "jobs       none")
    names = [switch["name"] for switch in described["switches"]]
    counts = Table("counter", *names, title="packets", title_justify="left")
    for kind, prefix in (("events", ""), ("drops", "dropped: ")):
        for name, total in described[kind].items():
            if total:
                counts.add_row(prefix + name, *(f"{s[kind].get(name, 0):,}" for s in described["switches"]))
    console.print(counts)


PLACE = 20
COMMANDS = (status,)
