"""`emulation clean`: what killed runs left behind, removed."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from hostlib.system.command import Command, json_option


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--all", "everything", is_flag=True, help="Also end runs that are alive, and remove what is theirs.")
@json_option
def clean(dry_run: bool, everything: bool, as_json: bool) -> None:
    """Remove what this user's killed runs have left on this machine.

    Each run records what it creates: processes with their start times, network namespaces, interfaces, a folder. Only
    what is recorded is removed.
    """
    from emulation.networks.cleanup import clean as remove_all
    from emulation.networks.describe import print_removed

    removed, left = remove_all(everything, dry_run)
    if as_json:
        click.echo(json.dumps({"removed": [asdict(each) for each in removed], "alive": left}, indent=2))
    else:
        print_removed(removed, left, dry_run)


PLACE = 80
COMMANDS = (clean,)
