"""`controller slots`: which slots are taken."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from controller.commands.running_controller import ask, print_json
from controller.commands.state_dir import state_dir_option
from hostlib.system.command import Command, json_option
from hostlib.text.output import output


@click.command(cls=Command)
@state_dir_option
@json_option
def slots(state_dir: Path, as_json: bool) -> None:
    """Show which slots of the switches are taken, and by which jobs."""
    answer = ask(state_dir, "/slots")
    if as_json:
        print_json(answer)
        return
    console = output()
    console.print(f"{answer['used']} of {answer['slots']} slots of each switch are taken")
    if answer["ranges"]:
        table = Table("slots", "job", "")
        for taken in answer["ranges"]:
            last = taken["first_slot"] + taken["slots"] - 1
            table.add_row(f"{taken['first_slot']}..{last}", escape(taken["job"]), "shared" if taken["shared"] else "")
        console.print(table)


PLACE = 22
COMMANDS = (slots,)
