"""`hostlib doctor`: whether all is as it should be."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click
from rich.console import Console

from hostlib.system.number_types import Finite
from hostlib.train.options import TrainOptions

DEFAULTS = TrainOptions()
PATIENCE_S = 15.0  # three heartbeats


@click.command()
@click.option(
    "--controller", default=DEFAULTS.controller, show_default=True, metavar="URL", help="Of the fabric to look at."
)
@click.option(
    "--address", default=DEFAULTS.address, show_default=True, help="This host's IPv4 address towards the switch."
)
@click.option(
    "--patience",
    type=Finite(min=0, min_open=True),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="A rank without a heartbeat for so long, or without progress while others made some, is stalled.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(controller: str, address: str, patience: float, as_json: bool) -> None:
    """Check this host, a fabric, and its jobs, and say what to change; exit code 1 if anything fails."""
    from hostlib.bench.checkup import examine, print_checks

    checks = examine(controller, address, patience)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print_checks(checks, Console())
    if any(check.state == "fail" for check in checks):
        sys.exit(1)


PLACE = 110
COMMANDS = (doctor,)
