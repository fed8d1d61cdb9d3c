"""Command-line options of a training run, and the command line of one rank (`python -m hostlib.train`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.errors import RunError
from hostlib.strategies.strategy import DEFAULT_STRATEGY
from hostlib.system.renamed_options import CommandWithRenamedOptions
from hostlib.train.options import TrainOptions
from hostlib.train.progress import TrainingProgress
from hostlib.transport.transport_registry import describe_transports, find_transport, transport_names

RENAMED = {"--world-size": "--workers", "--batch-size": "--batch", "--result": "--output"}
DEFAULTS = {f.name: f.default for f in fields(TrainOptions)}


def train_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `hostlib train` and `python -m hostlib.train` share."""
    for option in reversed(
        [
            click.option(
                "--mechanism",
                default=DEFAULTS["mechanism"],
                show_default=True,
                metavar="[STRATEGY/]NAME",
                help=f"What is summed when, and how; see `hostlib mechanisms`. STRATEGY is {DEFAULT_STRATEGY} by default; alone, it takes its "
                "paper's mechanism.",
            ),
            click.option(
                "--model",
                default=DEFAULTS["model"],
                show_default=True,
                metavar="NAME",
                help="See `hostlib models`; of lenet, resnet18 and vgg there are versions for the digits. Or MODULE:FACTORY.",
            ),
            click.option(
                "--data",
                default=DEFAULTS["data"],
                show_default=True,
                help="digits, mnist:FOLDER, cifar10:FOLDER, or synthetic[:examples=N] of what the model takes.",
            ),
            click.option(
                "--workers",
                "world_size",
                type=int,
                help="Number of workers [default: 4; under torchrun, what it started].",
            ),
            click.option("--epochs", default=DEFAULTS["epochs"], show_default=True),
            click.option("--steps", type=int, help="No more steps than these [default: all of the epochs']."),
            click.option(
                "--batch", "batch_size", default=DEFAULTS["batch_size"], show_default=True, help="Per worker."
            ),
            click.option("--lr", default=DEFAULTS["lr"], show_default=True, help="Learning rate (SGD, momentum 0.9)."),
            click.option("--seed", default=DEFAULTS["seed"], show_default=True, help="Of weights, split and batches."),
            click.option(
                "--bucket-mb", default=DEFAULTS["bucket_mb"], show_default=True, help="DDP's bucket size in MiB."
            ),
            click.option(
                "--controller",
                default=DEFAULTS["controller"],
                show_default=True,
                metavar="URL",
                help="Where ranks join, for mechanisms that need the fabric.",
            ),
            click.option(
                "--deadline",
                "deadline_s",
                default=DEFAULTS["deadline_s"],
                show_default=True,
                metavar="SECONDS",
                help="How long a rank waits without progress before it says who is missing.",
            ),
            click.option(
                "--address",
                default=DEFAULTS["address"],
                show_default=True,
                help="This host's IPv4 address towards the switch.",
            ),
            click.option(
                "--fallback",
                default=DEFAULTS["fallback"],
                show_default=True,
                metavar="NAME",
                help="The mechanism that goes on when the switch fails.",
            ),
            click.option(
                "--lanes",
                default=DEFAULTS["lanes"],
                show_default=True,
                help="Sockets and threads per worker towards the switch.",
            ),
            click.option(
                "--transport",
                type=click.Choice(transport_names()),
                default=DEFAULTS["transport"],
                show_default=True,
                help=f"What messages between hosts go by. {describe_transports()}.",
            ),
            click.option(
                "--profile",
                type=click.Path(file_okay=False),
                metavar="FOLDER",
                help="Write a Chrome trace per worker of the steps after the warm-up.",
            ),
            click.option(
                "--save",
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help="Write the weights that the run ends with here (torch.save's form).",
            ),
            click.option(
                "--output",
                "result",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Write the result (JSON) here.",
            ),
        ]
    ):
        command = option(command)
    return command


def write_result(path: Path | None, result: dict[str, Any]) -> None:
    """Write a run's result to a file atomically.

    Raises:
        RunError: it cannot be written.
    """
    if path is None:
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def print_result(result: dict[str, Any]) -> None:
    """Print a run's result for people."""
    table = Table(
        title=f"{result['model']} over {result['mechanism']}, {result['world_size']} workers",
        title_justify="left",
        show_header=False,
    )
    sent = max(link["sent"] for link in result["link_bytes"].values())
    table.add_row("steps", f"{result['steps']}")
    table.add_row("iteration (median)", f"{result['iteration_ms_median']:.1f} ms")
    table.add_row("communication (median)", f"{result['communication_ms_median']:.1f} ms")
    table.add_row(
        "exposed (median)", f"{result['exposed_ms_median']:.1f} ms, {100 * result['overlap']:.0f} % overlapped"
    )
    for what, value in result["strategy"].items():
        table.add_row(what.replace("_", " "), str(value))
    table.add_row("test accuracy", f"{result['test_accuracy']:.4f}")
    table.add_row("sent per worker", f"{sent / 1e6:.2f} MB")
    table.add_row(
        "weights", "identical on all ranks" if len(set(result["weights_sha256"])) == 1 else "[red]DIFFER[/red]"
    )
    Console().print(table)
    for refused in dict.fromkeys(
        each["refused"] for rank in result["fabric_failures"] for each in rank if "refused" in each
    ):
        click.echo(f"warning: {refused}", err=True)


@click.command(
    cls=CommandWithRenamedOptions,
    renamed=RENAMED,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@train_options
def rank_command(result: Path | None, **options: Any) -> None:
    """One rank of a training run, under torchrun or mpirun; with parameter servers, the last processes are those.

    \b
    Examples
        torchrun --nproc-per-node 4 -m hostlib.train --mechanism ring
        torchrun --nproc-per-node 5 -m hostlib.train --mechanism ps
        mpirun -n 4 python -m hostlib.train --transport mpi --mechanism ring
    """
    asked = TrainOptions(**options)
    # Refuse impossible options before torch is loaded.
    from hostlib.train.loop import train

    with find_transport(asked.transport).environment() as here:
        console = Console(stderr=True)
        with TrainingProgress(console, asked.mechanism, here.rank == 0 and console.is_terminal) as report:
            done = train(asked, here, report if here.rank == 0 else lambda event: None)
    if here.rank == 0:
        write_result(result, done)
        print_result(done)
