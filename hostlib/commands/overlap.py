"""`hostlib overlap`: how much of the communication strategies hide behind the backward pass, side by side."""

from __future__ import annotations

import json
import signal
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.table import Table

from hostlib.errors import RunError
from hostlib.system.command import Command, json_option
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.text.status_line import StatusLine
from hostlib.train.command_line import RESPELLED, batch_option, bucket_option, controller_option, model_option
from hostlib.train.options import TrainOptions

FIGURES = ("iteration_ms_median", "communication_ms_median", "exposed_ms_median")


@dataclass(frozen=True, slots=True)
class Hidden:
    """One strategy and mechanism: medians over its runs, in milliseconds.

    Attributes:
        exposed_ms: what remains of the communication after the backward pass.
        ratio: of that to the first mechanism's; None where the first has none.
    """

    mechanism: str
    iteration_ms: float
    communication_ms: float
    exposed_ms: float
    ratio: float | None


@click.command(
    cls=Command,
    renamed={
        "--world-size": "--workers",
        "--batch-size": "--batch",
        "--mechanisms": "--mechanism",
        "--steps": "--iterations",
    },
    respelled=RESPELLED,
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    default="bsp/ring,wfbp/ring",
    show_default=True,
    help="What to compare; the first is what the others are compared with.",
)
@model_option()
@click.option("--workers", "world_size", type=types.N, default=2, show_default=True, help="Number of workers.")
@batch_option
@bucket_option("4MiB")
@click.option(
    "--iterations",
    "steps",
    type=types.N,
    default=15,
    show_default=True,
    help="Iterations of each run; the first five are not timed.",
)
@click.option(
    "--repeats",
    type=types.N,
    default=3,
    show_default=True,
    help="Runs of each mechanism, in turns; the table has the median.",
)
@controller_option
@json_option
def overlap(mechanisms: str, steps: int, repeats: int, as_json: bool, **options: Any) -> None:
    """Measure how much of the communication each strategy hides behind the backward pass.

    Starts training runs as `netfold train` does, one after the other. docs/torch.md explains the times.

    \b
    Examples
        hostlib overlap --model resnet18 --batch 8
        hostlib overlap --mechanism bsp/shm,wfbp/shm,cgdp --workers 4
    """
    if repeats < 1:
        raise RunError(f"--repeats must be at least 1, not {repeats}")
    names = types.parts_of(mechanisms)
    if not names:
        raise RunError("--mechanism names nothing to compare; see `hostlib mechanisms`")
    asked = [TrainOptions(mechanism=name, steps=steps, epochs=steps, **options) for name in names]
    interrupt_on(signal.SIGTERM)
    rows = compared(asked, repeats)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print(asked[0], rows)


def compared(asked: list[TrainOptions], repeats: int) -> list[Hidden]:
    """A row for each: they take turns, so that what disturbs the machine disturbs all of them."""
    from hostlib.launch.fork_server import fork_server
    from hostlib.train.local import TRAINING, launch

    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with fork_server(*TRAINING) as forks, StatusLine("starting") as status:
        for number in range(1, repeats + 1):
            for options in asked:
                status.update(f"{options.mechanism}, run {number} of {repeats}")
                runs[options.mechanism].append(launch(options, lambda event: None, forks))
    figures = {
        name: [statistics.median(run[figure] for run in some) for figure in FIGURES] for name, some in runs.items()
    }
    first_ms = figures[asked[0].mechanism][-1]
    return [
        Hidden(name, iteration, communication, exposed, exposed / first_ms if first_ms else None)
        for name, (iteration, communication, exposed) in figures.items()
    ]


def _print(options: TrainOptions, rows: list[Hidden]) -> None:
    title = f"{options.model}, {options.world_size} workers, batch {options.batch_size}; medians in ms"
    first = f"of {rows[0].mechanism}'s"
    table = Table("mechanism", "iteration", "communication", "exposed", first, title=title, title_justify="left")
    for row in rows:
        times = (f"{ms:.1f}" for ms in (row.iteration_ms, row.communication_ms, row.exposed_ms))
        table.add_row(row.mechanism, *times, "-" if row.ratio is None else f"{100 * row.ratio:.0f} %")
    output().print(table)


PLACE = 100
COMMANDS = (overlap,)
