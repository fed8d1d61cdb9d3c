"""`simulation paper`: published tables, simulated again."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, fields

import click
from rich.table import Table

from hostlib.system.command import Command, json_option
from hostlib.text.output import output
from simulation.models.published_times import PublishedCell
from simulation.papers.network_operator import NOTES, TABLES, find_table, title_of


@click.command(cls=Command)
@click.argument("tables", metavar="TABLE...", nargs=-1, required=True)
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@click.option(
    "--markdown",
    "as_markdown",
    is_flag=True,
    help="Print tables in Markdown, as docs/measurements/published-tables.md has them.",
)
def paper(tables: tuple[str, ...], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Simulate published tables, and compare the numbers.

    TABLE is 1, 4, 6, 7, 8, 9, 10, figure2 to figure12, ralp2, ralp3, poseidon1, poseidon8, cgdp2, or all.

    \b
    Examples
        simulation paper 4
        simulation paper all --json
    """
    if sum((as_json, as_csv, as_markdown)) > 1:
        raise click.UsageError("--json, --csv and --markdown exclude each other")
    names = list(TABLES) if tables == ("all",) else [find_table(name)[0] for name in tables]
    played = {name: list(TABLES[name]()) for name in names}
    cells = [cell for each in played.values() for cell in each]
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in cells], indent=2))
    elif as_csv:
        rows = csv.writer(sys.stdout)
        rows.writerow([each.name for each in fields(PublishedCell)])
        rows.writerows([getattr(cell, each.name) for each in fields(PublishedCell)] for cell in cells)
    elif as_markdown:
        click.echo("\n\n".join(_markdown(name, each) for name, each in played.items()))
    else:
        for name, each in played.items():
            _print_cells(name, each)


def _row(cell: PublishedCell) -> tuple[str, str, str, str, str, str]:
    number = "-" if cell.published is None else f"{cell.published:,.6g}"
    error = "-" if cell.error is None else f"{100 * cell.error:+.1f} %"
    return (
        cell.row,
        cell.column,
        number,
        f"{cell.simulated:,.4g}" if cell.simulated < 1e6 else f"{cell.simulated:,.0f}",
        error,
        cell.kind,
    )


def _print_cells(name: str, cells: list[PublishedCell]) -> None:
    table = Table(
        "row", "column", title=title_of(name), title_justify="left", caption=NOTES.get(name), caption_justify="left"
    )
    for heading in ("published", "simulated", "error", "kind"):
        table.add_column(heading, justify="right")
    for cell in cells:
        table.add_row(*_row(cell))
    output().print(table)


def _markdown(name: str, cells: list[PublishedCell]) -> str:
    lines = [
        f"### {title_of(name)}",
        "",
        "| row | column | published | simulated | error | kind |",
        "|---|---|---:|---:|---:|---|",
    ]
    return "\n".join(lines + ["| " + " | ".join(_row(cell)) + " |" for cell in cells])


PLACE = 30
COMMANDS = (paper,)
