"""`controller status`: what a controller is doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from controller.commands.running_controller import ask, print_json, running_state
from controller.commands.state_dir import state_dir_option
from controller.state_file import Standby
from hostlib.system.command import Command, json_option
from hostlib.text.output import output


@click.command(cls=Command)
@state_dir_option
@json_option
def status(as_json: bool, state_dir: Path) -> None:
    """Show the state of the controller, its switches and its jobs."""
    state = running_state(state_dir)
    described = ask(state_dir, "/status")
    standbys = [{"http": each.http, "pid": each.process.pid} for each in Standby.all(state_dir)]
    described = {"http": state.http, "pid": state.controller.pid, "standbys": standbys, **described}
    if as_json:
        print_json(described)
        return
    _print_status(described)


def _print_status(described: dict[str, Any]) -> None:
    console = output()
    console.print(f"controller {described['http']} (pid {described['pid']}), version {described['version']}")
    for standby in described["standbys"]:
        console.print(f"standby at {standby['http']} (pid {standby['pid']})")
    for switch in described["switches"]:
        console.print(
            f"{switch['name']:<10} {described['kind']}, {switch['program']}, P4Runtime {switch['p4rt']}, "
            + (f"under {switch['parent']}, " if switch["parent"] else "")
            + ("up" if switch["up"] else "[red]gone[/red]")
            + (f", restarted {switch['restarts']}x" if switch["restarts"] else "")
            + (f", draining, {_jobs_left(switch['jobs'])}" if switch["draining"] else ""),
            soft_wrap=True,
        )
    for cable in described["cables"]:
        if cable["state"] in ("crossed", "silent"):
            console.print(f"[red]{cable['text']}[/red]", soft_wrap=True)
    jobs = Table("job", "state", "ranks", "slots", "slowest position", title="jobs", title_justify="left")
    for job in described["jobs"]:
        positions = [rank["position"] for rank in job["ranks"]]
        jobs.add_row(
            job["name"],
            job["state"] if job["queue_position"] is None else f"queued, {job['queue_position']}.",
            f"{len(job['ranks'])}/{job['world_size']}",
            ", ".join(f"{p['first_slot']}..{p['first_slot'] + p['slots'] - 1}" for p in job["pools"]),
            str(min(positions, default=0)),
        )
    console.print(jobs if described["jobs"] else "jobs       none")
    names = [switch["name"] for switch in described["switches"]]
    for rank in (rank for job in described["jobs"] for rank in job["ranks"]):
        if rank["port"] == "silent":
            console.print(f"[red]{escape(rank['port_text'])}[/red]", soft_wrap=True)
    counts = Table("counter", *names, title="packets", title_justify="left")
    for kind, prefix in (("events", ""), ("drops", "dropped: ")):
        for name, total in described[kind].items():
            if total:
                counts.add_row(prefix + name, *(f"{s[kind].get(name, 0):,}" for s in described["switches"]))
    console.print(counts)


def _jobs_left(jobs: list[str]) -> str:
    return f"jobs left: {escape(', '.join(jobs))}" if jobs else "empty"


PLACE = 20
COMMANDS = (status,)
