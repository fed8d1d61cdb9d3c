"""`emulation sample`: random cells as experiment files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types


@click.command("sample", cls=Command)
@click.option("--seed", type=types.SEED, default=1, show_default=True, help="Seed of the random choices.")
@click.option("--cells", type=types.N, default=24, show_default=True, help="How many cells to draw.")
@click.option(
    "--plans",
    type=types.N,
    help="Draw questions to the recommender instead: of each, the plan that it names and so many others.",
)
@click.option("--output", type=types.FOLDER, help="Folder for the files [default: build/sample-SEED].")
@json_option
def sample(seed: int, cells: int, plans: int | None, output: Path | None, as_json: bool) -> None:
    """Draw random cells and write each as an experiment file.

    Models, mechanisms with their options, 2 to 12 workers, 5 to 100 Gbit/s, stars and leaf-spine networks with up to
    fourfold oversubscription, 1 to 3 jobs; at most 24 ranks in a cell, servers included. `emulation run FOLDER` runs
    them all, and compares each with its simulation. A seed's cells are always the same; with more --cells, the first
    ones stay.

    With --plans, each of the --cells is a model on a network, for which `netfold ask --search` recommends a plan. Run, they
    tell how much longer that takes than the best plan: its regret.

    \b
    Examples
        emulation sample --seed 7 --cells 30 --output build/random
        emulation run build/random
        emulation sample --seed 7 --cells 20 --plans 4 --output build/questions
    """
    from emulation.experiments.random_cells import write_sample
    from emulation.experiments.random_questions import write_questions

    folder = output or Path("build") / f"sample-{seed}"
    if plans is None:
        files = write_sample(seed, cells, folder)
    else:
        files = write_questions(seed, cells, plans, folder, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo(json.dumps({"seed": seed, "files": [str(path) for path in files]}, indent=2))
    else:
        what = "cells" if plans is None else "files"
        click.echo(f"{len(files)} {what} in {folder}: `emulation run {folder}` runs them")


PLACE = 15
COMMANDS = (sample,)
