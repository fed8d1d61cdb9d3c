"""`hostlib doctor`: whether all is as it should be."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.train.options import TrainOptions

DEFAULTS = TrainOptions()
PATIENCE_S = 15.0  # three heartbeats


@click.command(cls=Command, renamed={"--patience": "--deadline"})
@click.option(
    "--controller",
    type=types.URLS,
    default=DEFAULTS.controller,
    show_default=True,
    help="Controller of the fabric to check.",
)
@click.option(
    "--address",
    type=types.ADDRESS,
    default=DEFAULTS.address,
    show_default=True,
    help="This host's IPv4 address towards the switch.",
)
@click.option(
    "--deadline",
    type=types.TIME_ABOVE_0,
    default=f"{PATIENCE_S:g}s",
    show_default=True,
    help="How long a rank may send no heartbeat, or fall behind the others, before it counts as stalled.",
)
@json_option
def doctor(controller: str, address: str, deadline: float, as_json: bool) -> None:
    """Check this host, a fabric and its jobs, and say what to change. The exit code is 1 if a check fails."""
    from hostlib.bench.checkup import examine, print_checks

    checks = examine(controller, address, deadline)
    if as_json:
        click.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        print_checks(checks, output())
    if any(check.state == "fail" for check in checks):
        sys.exit(1)


PLACE = 110
COMMANDS = (doctor,)
