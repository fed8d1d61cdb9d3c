"""`controller end`: the end of a job."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import click

from controller.commands.running_controller import ask, print_json
from controller.commands.state_dir import state_dir_option
from hostlib.system.command import Command, json_option


@click.command(cls=Command)
@click.argument("job")
@state_dir_option
@json_option
def end(job: str, as_json: bool, state_dir: Path) -> None:
    """End a job: what it has on the switches is free for others.

    Its ranks, if they still train, go on over the hosts.

    \b
    Example
        controller end train
    """
    answer = ask(state_dir, f"/jobs/{quote(job, safe='')}", "DELETE")
    if as_json:
        print_json({"job": job, **answer})
        return
    click.echo(f"job {job} has ended")


PLACE = 51
COMMANDS = (end,)
