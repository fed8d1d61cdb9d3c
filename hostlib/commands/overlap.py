"""`hostlib overlap`: how much of the communication strategies hide behind the backward pass, side by side."""

from __future__ import annotations

import json
import signal
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.errors import RunError
from hostlib.system.interrupts import interrupt_on
from hostlib.system.renamed_options import CommandWithRenamedOptions
from hostlib.train.options import TrainOptions

DEFAULTS = TrainOptions()
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
    cls=CommandWithRenamedOptions,
    renamed={"--world-size": "--workers", "--batch-size": "--batch", "--mechanisms": "--mechanism"},
)
@click.option(
    "--mechanism",
    "mechanisms",
    default="bsp/ring,wfbp/ring",
    show_default=True,
    metavar="A,B,...",
    help="What is compared, with the first: [STRATEGY/]NAME each.",
)
@click.option("--model", default=DEFAULTS.model, show_default=True, help="As `hostlib train` takes it.")
@click.option("--workers", "world_size", default=2, show_default=True, help="Workers.")
@click.option("--batch", "batch_size", default=DEFAULTS.batch_size, show_default=True, help="Per worker.")
@click.option("--bucket-mb", default=4.0, show_default=True, help="Bucket size in MiB.")
@click.option("--steps", default=15, show_default=True, help="Of each run; the first five do not count.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each; they take turns, and the median counts.")
@click.option("--controller", default=DEFAULTS.controller, show_default=True, metavar="URL", help="For the fabric.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def overlap(mechanisms: str, steps: int, repeats: int, as_json: bool, **options: Any) -> None:
    """How much of the communication strategies hide behind the backward pass, measured in turns on this machine.

    Starts training runs as `hostlib train` does, one after the other. docs/torch.md says what the times are.

    \b
    Examples
        hostlib overlap --model resnet18 --batch 8
        hostlib overlap --mechanism bsp/shm,wfbp/shm,cgdp --workers 4
    """
    if repeats < 1:
        raise RunError(f"--repeats must be at least 1, not {repeats}")
    names = tuple(dict.fromkeys(name.strip() for name in mechanisms.split(",") if name.strip()))
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
    with Console(stderr=True).status("") as status, fork_server(*TRAINING) as forks:
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
    Console().print(table)


PLACE = 100
COMMANDS = (overlap,)
