"""`controller events`: what happened."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from controller.commands.running_controller import ask, print_json
from controller.commands.state_dir import state_dir_option
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types

LOOK_EVERY_S = 0.5


@click.command(cls=Command)
@click.option("--most", type=types.Whole(1, 1000), default=50, show_default=True, help="How many events to show.")
@click.option("--follow", is_flag=True, help="Go on with events as they happen; with --json one document a line.")
@state_dir_option
@json_option
def events(most: int, follow: bool, state_dir: Path, as_json: bool) -> None:
    """Show the last events: jobs that came and went, lost ranks, refused joins, switches down and up."""
    answer = ask(state_dir, f"/events?most={most}")
    if as_json and not follow:
        print_json(answer)
        return
    while True:
        for event in answer["events"]:
            click.echo(json.dumps(event) if as_json else _line(event))
        if not follow:
            return
        time.sleep(LOOK_EVERY_S)
        last = answer["events"][-1]["id"] if answer["events"] else answer["last_id"]
        answer = {"last_id": last, **ask(state_dir, f"/events?after={last}")}


def _line(event: dict[str, Any]) -> str:
    when = datetime.fromtimestamp(event["time_s"]).strftime("%Y-%m-%d %H:%M:%S")
    return f"{when}  {event['kind']:<18} {event['text']}"


PLACE = 23
COMMANDS = (events,)
