"""`hostlib converge`: the same training by several mechanisms, step by step. Source: "Poseidon", figure 11."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.system.command import Command, json_option
from hostlib.system.plot_file import require_drawable
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.train.command_line import batch_option, model_option, seed_option
from hostlib.train.convergence import Curve, draw, smoothed
from hostlib.train.options import TrainOptions
from hostlib.train.progress import TrainingProgress

DEFAULTS = TrainOptions()


@click.command(cls=Command, renamed={"--world-size": "--workers", "--batch-size": "--batch", "--steps": "--iterations"})
@click.argument("mechanisms", nargs=-1, required=True, metavar="MECHANISM...")
@model_option()
@click.option(
    "--data",
    type=types.DATASET,
    default=DEFAULTS.data,
    show_default=True,
    help="Data to train on, as `netfold train` takes it.",
)
@click.option("--workers", "world_size", type=types.N, default=4, show_default=True, help="Number of workers.")
@click.option("--iterations", "steps", type=types.N, default=400, show_default=True, help="Iterations of each run.")
@batch_option
@click.option("--lr", type=types.NUMBER, default=DEFAULTS.lr, show_default=True, help="Learning rate of SGD.")
@seed_option
@click.option("--plot", type=types.FILE, help="Draw the loss curves to this file (.svg, .png or .pdf).")
@json_option
def converge(mechanisms: tuple[str, ...], steps: int, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Train a model from the same weights with each MECHANISM, and compare how fast the loss falls.

    \b
    Examples
        hostlib converge hybcomm/ring onebit/ring --plot convergence.svg
    """
    from hostlib.launch.fork_server import fork_server
    from hostlib.train.local import TRAINING, launch

    require_drawable(plot)
    runs = [TrainOptions(mechanism=name, steps=steps, epochs=steps, **options) for name in mechanisms]
    curves = []
    console = Console(stderr=True)
    with fork_server(*TRAINING) as forks:
        for run in runs:
            losses: list[float] = []
            with TrainingProgress(console, run.mechanism, True) as report:

                def note(event: dict[str, Any], losses: list[float] = losses, report: Any = report) -> None:
                    losses.append(event["loss"])
                    report(event)

                result = launch(run, note, forks)
            curves.append(Curve(run.mechanism, losses, 1 - result["test_accuracy"]))
    if plot is not None:
        draw(curves, f"{runs[0].model}, {options['world_size']} workers", plot)
    if as_json:
        click.echo(json.dumps({c.mechanism: {"loss": c.losses, "test_error": c.test_error} for c in curves}, indent=2))
        return
    marks = [steps * part // 4 for part in (1, 2, 3, 4)]
    table = Table("mechanism", *(f"step {mark}" for mark in marks), "test error")
    table.title = "training loss"
    for curve in curves:
        means = smoothed(curve.losses)
        table.add_row(curve.mechanism, *(f"{means[mark - 1]:.4f}" for mark in marks), f"{curve.test_error:.4f}")
    output().print(table)


PLACE = 60
COMMANDS = (converge,)
