"""`controller jobs`: who uses the fabric, and who did."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from controller.commands.running_controller import ask, print_json
from controller.commands.state_dir import state_dir_option
from hostlib.protocol import constants
from hostlib.system.command import Command, json_option
from hostlib.text.output import output


@click.command(cls=Command)
@click.option("--ended", is_flag=True, help="Show the jobs that have ended, the last one first, and why.")
@state_dir_option
@json_option
def jobs(ended: bool, state_dir: Path, as_json: bool) -> None:
    """Show the jobs and their ranks."""
    answer = ask(state_dir, "/history" if ended else "/jobs")
    if as_json:
        print_json(answer)
    elif not answer["jobs"]:
        output().print("no job has ended" if ended else "no jobs")
    else:
        output().print(_ended(answer["jobs"]) if ended else _present(answer["jobs"]))


def _present(found: list[dict[str, Any]]) -> Table:
    table = Table(
        "job",
        "state",
        "rank",
        "address",
        "switch",
        "port",
        "port's check",
        "position",
        "last heartbeat",
        "rank's state",
    )
    for job in found:
        name = escape(job["name"])
        for rank in job["ranks"]:
            number = "server" if rank["rank"] == constants.RANK_ALL else str(rank["rank"])
            where = (number, rank["address"], rank["switch"], str(rank["switch_port"]), rank["port"])
            beat = f"{rank['last_heartbeat_s']:.1f} s ago"
            table.add_row(name, job["state"], *where, f"{rank['position']:,}", beat, rank["state"])
    return table


def _ended(found: list[dict[str, Any]]) -> Table:
    table = Table("job", "policy", "ranks", "slots", "began", "lasted", "why it ended")
    for job in found:
        began = datetime.fromtimestamp(job["began_s"]).strftime("%Y-%m-%d %H:%M:%S")
        lasted = timedelta(seconds=round(job["ended_s"] - job["began_s"]))
        counts = (job["policy"], str(job["world_size"]), str(job["slots"]))
        table.add_row(escape(job["name"]), *counts, began, str(lasted), escape(job["why"]))
    return table


PLACE = 21
COMMANDS = (jobs,)
