"""`simulation calibrate`: intervals of predicted times from measured ones."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.table import Table

from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.output import output
from simulation.predictors.calibration import COVERAGE, Calibration, measured_cells


@click.command(cls=Command)
@click.argument("results", nargs=-1, required=True, type=types.ANY_FILE, metavar="RESULTS...")
@click.option(
    "--coverage",
    type=types.PROBABILITY,
    default=COVERAGE,
    show_default=True,
    help="Share of new cells whose time is to be in its interval.",
)
@click.option("--together", is_flag=True, help="One interval for all mechanisms, not one for each kind of them.")
@json_option
def calibrate(results: tuple[Path, ...], coverage: float, together: bool, as_json: bool) -> None:
    """Find out from measured cells how far predicted times are off.

    RESULTS are experiments' folders, or their results.json. Cells that are not valid are left out. Kinds of mechanisms
    with too few cells (19 for 0.9) share the interval of all.

    \b
    Examples
        simulation calibrate build/fabric-vs-host
        simulation calibrate run1 run2 --coverage 0.8 --json
    """
    made = Calibration.of(measured_cells(results), coverage, not together)
    if as_json:
        click.echo(json.dumps(made.as_json(), indent=2))
        return
    table = Table("mechanisms", title=f"measured over predicted time, {coverage:.0%}", title_justify="left")
    for heading in ("from", "to", "cells"):
        table.add_column(heading, justify="right")
    for kind, ratios in made.groups.items():
        table.add_row(kind, f"{ratios.low - 1:+.1%}", f"{ratios.high - 1:+.1%}", str(ratios.cells))
    output().print(table)


PLACE = 35
COMMANDS = (calibrate,)
