"""`simulation paper`: published tables, simulated again."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

import click
from rich.table import Table

from hostlib.system.command import Command, json_option
from hostlib.system.plot_file import require_drawable
from hostlib.text import option_types as types
from hostlib.text.output import output
from simulation.papers.cell import Cell
from simulation.papers.published_tables import NOTES, SUMMARY, TABLES, cells, find_table, title_of

HEADINGS = ("published", "simulated", "error", "rests on", "links +20 %")


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
@click.option("--plot", type=types.FILE, help="Draw the table to this file (.svg, .png or .pdf).")
def paper(tables: tuple[str, ...], as_json: bool, as_csv: bool, as_markdown: bool, plot: Path | None) -> None:
    """Simulate published tables, and compare the numbers.

    TABLE is 1 to 4, 6 to 10, figure2 to figure12 or streaming; ralp1 to ralp4, ralp-figure2 to ralp-figure9;
    poseidon1, poseidon3, poseidon8, poseidon-figure5 to poseidon-figure10, poseidon-cntk; cgdp1, cgdp2, cgdp3,
    cgdp-figure3, cgdp-figure6 to cgdp-figure8; summary, or all.

    "rests on" says what a number owes to the paper and what to a fit. "links +20 %" says how the time behind it changes
    with a fifth more bandwidth: -16.7 % if links alone count, 0 if computing alone does.

    \b
    Examples
        simulation paper 4
        simulation paper all --json
        simulation paper figure3 --plot figure3.svg
    """
    if sum((as_json, as_csv, as_markdown)) > 1:
        raise click.UsageError("--json, --csv and --markdown exclude each other")
    names = [*TABLES, SUMMARY] if tables == ("all",) else [find_table(name) for name in tables]
    if plot is not None and len(names) > 1:
        raise click.UsageError(f"--plot draws one table, not {len(names)}: name one")
    require_drawable(plot)
    played = {name: cells(name) for name in names}
    every = [cell for each in played.values() for cell in each]
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in every], indent=2))
    elif as_csv:
        rows = csv.writer(sys.stdout)
        rows.writerow([each.name for each in fields(Cell)])
        rows.writerows([getattr(cell, each.name) for each in fields(Cell)] for cell in every)
    elif as_markdown:
        click.echo("\n\n".join(markdown(name, each) for name, each in played.items()))
    else:
        for name, each in played.items():
            _print_cells(name, each)
    if plot is not None:
        from simulation.papers.table_plot import draw

        draw(title_of(names[0]), every, plot)


def _row(cell: Cell) -> tuple[str, ...]:
    number = "-" if cell.published is None else f"{cell.published:,.6g}"
    error = "-" if cell.error is None else f"{100 * cell.error:+.1f} %"
    return (
        cell.row,
        cell.column,
        number,
        f"{cell.simulated:,.4g}" if cell.simulated < 1e6 else f"{cell.simulated:,.0f}",
        error,
        f"{cell.kind}: {cell.rests_on}" if cell.rests_on else cell.kind,
        "-" if cell.faster_links is None else f"{round(100 * cell.faster_links, 1) + 0.0:.1f} %",
    )


def _print_cells(name: str, played: tuple[Cell, ...]) -> None:
    table = Table(
        "row", "column", title=title_of(name), title_justify="left", caption=NOTES.get(name), caption_justify="left"
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "rests on" else "right")
    for cell in played:
        table.add_row(*_row(cell))
    output().print(table)


def markdown(name: str, played: tuple[Cell, ...]) -> str:
    """A table as the pages have it, with its heading."""
    lines = [f"### {title_of(name)}", ""]
    if name == SUMMARY:
        columns = list(dict.fromkeys(cell.column for cell in played))
        values = {
            (cell.row, cell.column): f"{cell.simulated:,.0f}" if cell.simulated >= 100 else f"{cell.simulated:.3g}"
            for cell in played
        }
        lines += [f"| cells | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
        rows = dict.fromkeys(cell.row for cell in played)
        return "\n".join(lines + [f"| {' | '.join([row, *(values[row, each] for each in columns)])} |" for row in rows])
    lines += [f"| row | column | {' | '.join(HEADINGS)} |", "|---|---|---:|---:|---:|---|---:|"]
    return "\n".join(lines + ["| " + " | ".join(_row(cell)) + " |" for cell in played])


PLACE = 30
COMMANDS = (paper,)
