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
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.common_options import together
from hostlib.text.output import output
from hostlib.train.options import TrainOptions
from hostlib.train.progress import TrainingProgress
from hostlib.transport.transport_registry import describe_transports, find_transport, transport_names

RENAMED = {
    "--world-size": "--workers",
    "--batch-size": "--batch",
    "--result": "--output",
    "--steps": "--iterations",
    "--profile": "--chrome-traces",
}
RESPELLED = {"--bucket-mb": lambda mib: ["--bucket", f"{mib}MiB"]}
MIB = 1 << 20
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(TrainOptions)}


def _mib(context: click.Context, parameter: click.Parameter, size: int) -> float:
    """Of whole bytes: as many digits as a size in MiB was typed with."""
    return round(size / MIB, 6)


def _as_text(context: click.Context, parameter: click.Parameter, path: Path | None) -> str | None:
    """TrainOptions goes to ranks as JSON."""
    return None if path is None else str(path)


def bucket_option(default: str) -> Callable[[Any], Any]:
    """`--bucket`, which gives commands MiB, as TrainOptions has them."""
    return click.option(
        "--bucket",
        "bucket_mb",
        type=types.SIZE,
        default=default,
        show_default=True,
        callback=_mib,
        help="Size of DDP's gradient buckets.",
    )


def model_option(more: str = "") -> Callable[[Any], Any]:
    """`--model`.

    Args:
        more: what its help says besides.
    """
    return click.option(
        "--model",
        type=types.MODEL,
        default=DEFAULTS["model"],
        show_default=True,
        help=f"Model to train; see `netfold models`.{more}",
    )


batch_option = click.option(
    "--batch",
    "batch_size",
    type=types.N,
    default=DEFAULTS["batch_size"],
    show_default=True,
    help="Examples per worker and iteration.",
)
seed_option = click.option(
    "--seed",
    type=types.SEED,
    default=DEFAULTS["seed"],
    show_default=True,
    help="Seed of weights, data split and batches.",
)
controller_option = click.option(
    "--controller",
    type=types.URLS,
    default=DEFAULTS["controller"],
    show_default=True,
    help="Controller that ranks join, for mechanisms that need the fabric; or a primary and its standbys.",
)

train_options = together(
    click.option(
        "--mechanism",
        type=types.MECHANISM,
        default=DEFAULTS["mechanism"],
        show_default=True,
        help="How gradients are summed; see `netfold mechanisms`. STRATEGY/MECHANISM also says when "
        f"[default: {DEFAULT_STRATEGY}]; a strategy alone uses the mechanism of its paper.",
    ),
    model_option(" lenet, resnet18 and vgg have versions for the digits."),
    click.option(
        "--data",
        type=types.DATASET,
        default=DEFAULTS["data"],
        show_default=True,
        help="Data to train on: digits, mnist:FOLDER, cifar10:FOLDER, images:FOLDER, or synthetic[:examples=N].",
    ),
    click.option(
        "--workers", "world_size", type=types.N, help="Number of workers [default: 4; under torchrun, its world size]."
    ),
    click.option(
        "--epochs", type=types.N, default=DEFAULTS["epochs"], show_default=True, help="Passes over the training data."
    ),
    click.option("--iterations", "steps", type=types.N, help="Stop after this many iterations [default: all epochs]."),
    batch_option,
    click.option(
        "--lr",
        type=types.NUMBER,
        default=DEFAULTS["lr"],
        show_default=True,
        help="Learning rate of SGD (momentum 0.9).",
    ),
    seed_option,
    bucket_option(f"{DEFAULTS['bucket_mb'] * 1024:g}KiB"),
    controller_option,
    click.option(
        "--deadline",
        "deadline_s",
        type=types.TIME,
        default=f"{DEFAULTS['deadline_s']:g}s",
        show_default=True,
        help="How long a rank may make no progress before the run ends and names it.",
    ),
    click.option(
        "--patience",
        "patience_s",
        type=types.TIME,
        default=f"{DEFAULTS['patience_s']:g}s",
        show_default=True,
        help="How long the switch may be silent before the fallback continues.",
    ),
    click.option(
        "--silence",
        "silence_s",
        type=types.TIME,
        default=f"{DEFAULTS['silence_s']:g}s",
        show_default=True,
        help="A rank that gives no sign of life for so long is missing.",
    ),
    click.option(
        "--address",
        type=types.ADDRESS,
        default=DEFAULTS["address"],
        show_default=True,
        help="This host's IPv4 address towards the switch.",
    ),
    click.option(
        "--fallback",
        type=types.MECHANISM,
        default=DEFAULTS["fallback"],
        show_default=True,
        help="Mechanism that continues when the switch fails.",
    ),
    click.option(
        "--lanes",
        type=types.N,
        default=DEFAULTS["lanes"],
        show_default=True,
        help="Sockets and threads per worker towards the switch, 1 to 4.",
    ),
    click.option(
        "--slots",
        type=types.N,
        default=DEFAULTS["slots"],
        show_default=True,
        help="Slots of the switch for each lane, a power of two: how many packets a worker has on their way.",
    ),
    click.option(
        "--transport",
        type=click.Choice(transport_names()),
        default=DEFAULTS["transport"],
        show_default=True,
        help=f"Library for messages between hosts. {describe_transports()}.",
    ),
    click.option(
        "--chrome-traces",
        "profile",
        type=types.FOLDER,
        callback=_as_text,
        help="Write a Chrome trace per worker into this folder, of the iterations after the warm-up.",
    ),
    click.option(
        "--save",
        type=types.FILE,
        callback=_as_text,
        help="Write the final weights to this file, in torch.save's format.",
    ),
    click.option("--output", "result", type=types.FILE, help="Write the result (JSON) to this file."),
    json_option,
)


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
    output().print(table)
    for refused in dict.fromkeys(
        each["refused"] for rank in result["fabric_failures"] for each in rank if "refused" in each
    ):
        click.echo(f"warning: {refused}", err=True)


@click.command(
    cls=Command,
    renamed=RENAMED,
    respelled=RESPELLED,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@train_options
def rank_command(result: Path | None, as_json: bool, **options: Any) -> None:
    """Run one rank of a training run, under torchrun or mpirun. With parameter servers, the last ranks are servers.

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
        if as_json:
            click.echo(json.dumps(done, indent=2))
        else:
            print_result(done)
