"""`emulation clean`: what killed runs left behind, removed."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--all", "everything", is_flag=True, help="Of runs that are alive, too: they are ended first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def clean(dry_run: bool, everything: bool, as_json: bool) -> None:
    """Remove what runs of this user's that are dead, killed perhaps, left on this machine.

    Each run writes down what it makes: processes with their start times, network namespaces, interfaces, its folder.
    That is removed, and nothing else.
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
