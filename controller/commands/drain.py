"""`controller drain`: a switch that takes no new jobs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from controller.commands.running_controller import ask, print_json
from controller.commands.state_dir import state_dir_option
from hostlib.system.command import Command, json_option


@click.command(cls=Command)
@click.argument("switch")
@click.option("--undo", is_flag=True, help="Let the switch take jobs again.")
@state_dir_option
@json_option
def drain(switch: str, undo: bool, as_json: bool, state_dir: Path) -> None:
    """Let a switch, and those below it, take no new jobs; jobs on it go on to their end.

    It prints the jobs that are still there. When none is, the switch can be taken away.

    \b
    Example
        controller drain leaf0
        controller drain leaf0 --undo
    """
    answer = ask(state_dir, f"/switches/{quote(switch, safe='')}/drain", "DELETE" if undo else "POST")
    if as_json:
        print_json(answer)
        return
    jobs = ", ".join(answer["jobs"]) or "none"
    click.echo(
        f"{switch} takes jobs again" if undo else f"{switch} takes no new jobs; jobs that are still on it: {jobs}"
    )


PLACE = 50
COMMANDS = (drain,)
