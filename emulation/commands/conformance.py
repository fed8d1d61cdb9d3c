"""`emulation conformance`: p4c's own v1model tests through the embedded switch."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from emulation.errors import EmulationError


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", default="", metavar="TEXT", help="Only programs with this in their name.")
@click.option("--jobs", type=click.IntRange(1), help="Tests at once [default: one per core].")
@click.option("--json", "as_json", is_flag=True, help="Print passed, unsupported and failed as JSON.")
def conformance(folder: Path, only: str, jobs: int | None, as_json: bool) -> None:
    """Run a folder of v1model tests through the embedded switch.

    FOLDER holds programs NAME-bmv2.p4 with a test NAME-bmv2.stf beside them, as p4c's testdata/p4_16_samples does. Each
    is compiled with p4c-bm2-ss, loaded, and driven with its test's packets. A program that uses what this switch does
    not run is unsupported, with the construct; a different answer is a failure, and so is a crash. Exit code 1 if any
    failed.
    """
    from emulation.demo.cost_tables import print_conformance
    from emulation.switch.conformance.suite import cases, run

    programs = [path for path in cases(folder) if only in path.stem]
    if not programs:
        raise EmulationError(f"no program in {folder} has {only!r} in its name")
    progress = Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))
    with progress:
        bar = progress.add_task("conformance", total=len(programs))
        report = run(programs, lambda _: progress.advance(bar), jobs)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=1))
    else:
        print_conformance(report)
    if report.failed:
        sys.exit(1)


PLACE = 50
COMMANDS = (conformance,)
