"""`emulation report`: a page of an experiment's results."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from hostlib.system.interrupts import interrupt_on


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The page [default: report.html in DIR].",
)
@click.option("--json", "as_json", is_flag=True, help="Print rankings, speed-ups and the simulation's errors as JSON.")
def report(folder: Path, output: Path | None, as_json: bool) -> None:
    """Make one page of what an experiment has left in DIR, also of one that has not finished.

    The page holds all it shows: it opens from a file, without a network. Beside it, in DIR: plots/ (SVG and PNG),
    traces/ (Chrome's format, for Perfetto) and results.csv.
    """
    from emulation.report.build import write_report
    from emulation.report.headline import answer

    interrupt_on(signal.SIGTERM)
    console = Console(stderr=True)
    progress = Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        bar = progress.add_task("plots", total=None)
        summary, page = write_report(folder, output, lambda n, total: progress.update(bar, completed=n, total=total))
    if as_json:
        click.echo(json.dumps(summary.as_json(), indent=2))
        return
    for sentence in answer(summary):
        click.echo(sentence)
    click.echo(f"report: {page}")


PLACE = 30
COMMANDS = (report,)
