"""`emulation conformance`: p4c's own v1model tests through the embedded switch."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from emulation.errors import EmulationError
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.progress_lines import PlainProgress


@click.command(cls=Command, renamed={"--jobs": "--processes"})
@click.argument("folder", type=types.FOLDER)
@click.option("--only", type=types.TEXT, default="", help="Run only programs with this in their name.")
@click.option("--processes", type=types.N, help="Number of parallel processes [default: one per core].")
@json_option
def conformance(folder: Path, only: str, processes: int | None, as_json: bool) -> None:
    """Run a folder of v1model tests (STF) on the embedded switch.

    FOLDER holds programs NAME-bmv2.p4 with a test NAME-bmv2.stf beside them, as p4c's testdata/p4_16_samples does. Each
    is compiled with p4c-bm2-ss, loaded, and driven with its test's packets. A program that uses what this switch does
    not run is unsupported, with the construct; a different answer is a failure, and so is a crash. Exit code 1 if any
    failed.
    """
    if processes is not None and processes < 1:
        raise EmulationError(f"--processes must be at least 1, not {processes}")
    from emulation.demo.cost_tables import print_conformance
    from emulation.switch.conformance.suite import cases, run

    programs = [path for path in cases(folder) if only in path.stem]
    if not programs:
        raise EmulationError(f"no program in {folder} has {only!r} in its name")
    with PlainProgress("conformance", len(programs)) as advance:
        report = run(programs, lambda _: advance(), processes)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=1))
    else:
        print_conformance(report)
    if report.failed:
        sys.exit(1)


PLACE = 50
COMMANDS = (conformance,)
