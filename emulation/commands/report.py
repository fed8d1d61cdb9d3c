"""`emulation report`: a page of an experiment's results."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from hostlib.system.command import Command, json_option
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types


@click.command(cls=Command)
@click.argument("folder", type=types.ANY_FOLDER)
@click.option("--output", type=types.FILE, help="Write the page to this file [default: report.html in FOLDER].")
@json_option
def report(folder: Path, output: Path | None, as_json: bool) -> None:
    """Make a page of the results of an experiment in FOLDER, finished or not.

    The page holds all it shows: it opens from a file, without a network. FOLDER also gets plots/ (SVG and PNG), traces/
    (Chrome's format, for Perfetto) and results.csv.
    """
    from emulation.report.build import write_report
    from emulation.report.canvas import require_libraries
    from emulation.report.headline import answer

    require_libraries()
    interrupt_on(signal.SIGTERM)
    console = Console(stderr=True)
    progress = Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )

    def drawn(done: int, total: int) -> None:
        progress.update(bar, completed=done, total=total)
        if not console.is_terminal and done in (1, total):
            console.print(f"plots: {done} of {total}", highlight=False)

    with progress:
        bar = progress.add_task("plots", total=None)
        summary, page = write_report(folder, output, drawn)
    if as_json:
        click.echo(json.dumps(summary.as_json(), indent=2))
        return
    for sentence in answer(summary):
        click.echo(sentence)
    click.echo(f"report: {page}")


PLACE = 30
COMMANDS = (report,)
