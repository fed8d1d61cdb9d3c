"""The `hostlib` command, and the command line of one rank (`python -m hostlib.train`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.checker import check
from hostlib.errors import HostlibError, RunError
from hostlib.options import TrainOptions
from hostlib.progress import TrainingProgress
from hostlib.registry import STRATEGIES, find, registered
from hostlib.schedule import describe, link_elements

DEFAULTS = {f.name: f.default for f in fields(TrainOptions)}
BYTES_PER_ELEMENT = 4


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Train with a collective mechanism, and look at what it does.

    \b
    hostlib train         train a model on several workers of this machine
    hostlib mechanisms    which mechanisms there are
    hostlib schedule      what one of them does, operation by operation

    On several machines, or under your own launcher: torchrun ... -m hostlib.train --mechanism inagg+mcast
    """


def train_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that `hostlib train` and `python -m hostlib.train` share."""
    for option in reversed(
        [
            click.option(
                "--mechanism",
                default=DEFAULTS["mechanism"],
                show_default=True,
                metavar="[STRATEGY/]NAME",
                help="How gradients are summed; see `hostlib mechanisms`. STRATEGY is wfbp (default) or bsp.",
            ),
            click.option("--model", default=DEFAULTS["model"], show_default=True, help="lenet or vgg."),
            click.option(
                "--world-size", type=int, help="Number of workers [default: 4; under torchrun, what it started]."
            ),
            click.option("--epochs", default=DEFAULTS["epochs"], show_default=True),
            click.option("--batch-size", default=DEFAULTS["batch_size"], show_default=True, help="Per worker."),
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
                "--result", type=click.Path(dir_okay=False, path_type=Path), help="Write the result (JSON) here."
            ),
        ]
    ):
        command = option(command)
    return command


@main.command()
@train_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--progress/--no-progress", default=None, help="A progress bar [default: when on a terminal].")
def train(result: Path | None, as_json: bool, progress: bool | None, **options: Any) -> None:
    """Train a model on scikit-learn's digits with several workers on this machine.

    \b
    Examples
        hostlib train --mechanism ring
        controller start && hostlib train --mechanism inagg+mcast --model vgg --world-size 8
    """
    from hostlib.launch import launch

    signal.signal(signal.SIGTERM, _interrupt)
    if result is not None and not os.access(result.absolute().parent, os.W_OK):
        raise RunError(f"cannot write {result}: its folder does not exist or is not writable")
    console = Console(stderr=True)
    shown = console.is_terminal if progress is None else progress
    with TrainingProgress(console, options["mechanism"], shown) as report:
        done = launch(TrainOptions(**options), report)
    _write(result, done)
    if as_json:
        click.echo(json.dumps(done, indent=2))
    else:
        _print_result(done)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, path)
    except OSError as wrong:
        raise RunError(f"cannot write {path}: {wrong.strerror}") from wrong


def _print_result(result: dict[str, Any]) -> None:
    table = Table(
        title=f"{result['model']} over {result['mechanism']}, {result['world_size']} workers",
        title_justify="left",
        show_header=False,
    )
    sent = max(link["sent"] for link in result["link_bytes"].values())
    table.add_row("steps", f"{result['steps']}")
    table.add_row("iteration (median)", f"{result['iteration_ms_median']:.1f} ms")
    table.add_row("test accuracy", f"{result['test_accuracy']:.4f}")
    table.add_row("sent per worker", f"{sent / 1e6:.2f} MB")
    table.add_row(
        "weights", "identical on all ranks" if len(set(result["weights_sha256"])) == 1 else "[red]DIFFER[/red]"
    )
    Console().print(table)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def mechanisms(as_json: bool) -> None:
    """Which mechanisms and strategies `--mechanism` takes."""
    known = registered()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "mechanisms": {
                        name: {"summary": m.summary, "needs_fabric": m.needs_fabric} for name, m in known.items()
                    },
                    "strategies": STRATEGIES,
                },
                indent=2,
            )
        )
        return
    table = Table("mechanism", "needs the fabric", "what it does")
    for name, mechanism in known.items():
        table.add_row(name, "yes" if mechanism.needs_fabric else "no", mechanism.summary)
    strategies = Table("strategy", "what it does")
    for name, summary in STRATEGIES.items():
        strategies.add_row(name, summary)
    Console().print(table, strategies)


@main.command()
@click.argument("mechanism")
@click.option("-n", "world_size", default=4, show_default=True, help="Workers.")
@click.option("--size", default=1 << 20, show_default=True, help="Tensor size in bytes (float32).")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def schedule(mechanism: str, world_size: int, size: int, as_json: bool) -> None:
    """What a mechanism does, operation by operation, after proving that it sums right and cannot deadlock."""
    if world_size < 1 or size < BYTES_PER_ELEMENT:
        raise RunError("-n must be at least 1 and --size at least 4 bytes")
    made = find(mechanism).schedule(world_size)
    check(made)
    carried = {
        node: {"sent_bytes": BYTES_PER_ELEMENT * sent, "received_bytes": BYTES_PER_ELEMENT * received}
        for node, (sent, received) in link_elements(made, size // BYTES_PER_ELEMENT).items()
    }
    if as_json:
        click.echo(
            json.dumps(
                {
                    "mechanism": mechanism,
                    "world_size": world_size,
                    "pieces": made.pieces,
                    "verified": True,
                    "links": carried,
                    "nodes": {node: [describe(op) for op in ops] for node, ops in made.nodes.items()},
                },
                indent=2,
            )
        )
        return
    table = Table(
        "node",
        "operations",
        title=f"{mechanism}, {world_size} workers, {made.pieces} pieces: verified",
        title_justify="left",
    )
    for node, operations in made.nodes.items():
        table.add_row(node, "\n".join(f"{i + 1}. {describe(op)}" for i, op in enumerate(operations)))
    Console().print(table)


# ---- one rank ---------------------------------------------------------------------------------------------------


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@train_options
def rank_command(result: Path | None, **options: Any) -> None:
    """One rank of a training run, under torchrun.

    \b
    Example
        torchrun --nproc-per-node 4 -m hostlib.train --mechanism ring
    """
    from hostlib.train import Surroundings, train

    here = Surroundings.from_environment()
    console = Console(stderr=True)
    with TrainingProgress(console, options["mechanism"], here.rank == 0 and console.is_terminal) as report:
        done = train(TrainOptions(**options), here, report if here.rank == 0 else lambda event: None)
    if here.rank == 0:
        _write(result, done)
        _print_result(done)


def run_rank() -> None:
    """`python -m hostlib.train`: under `hostlib train` events go out as JSON lines, else as a person would read them."""
    told = os.environ.get("NETFOLD_TRAIN_OPTIONS")
    _exit(lambda: _child(told) if told else rank_command(standalone_mode=False))
    # Gloo's threads may still wait for a peer that is gone: nothing of this process is needed any more.
    sys.stdout.flush()
    os._exit(0)


def _child(told: str) -> None:
    from hostlib.train import Surroundings, train

    here = Surroundings.from_environment()

    def tell(event: dict[str, Any]) -> None:
        if here.rank == 0:
            click.echo(json.dumps(event))

    tell({"event": "result", "result": train(TrainOptions.from_json(told), here, tell)})


def _exit(command: Callable[[], object]) -> None:
    """Run a command; errors of netfold become one line and exit code 1."""
    code = 0
    try:
        command()
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = 130
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except HostlibError as wrong:
        click.echo(f"error: {wrong}", err=True)
        code = 1
    if code:
        sys.stderr.flush()
        os._exit(code)


def run() -> None:
    """Entry point of `hostlib`."""
    _exit(lambda: main(standalone_mode=False))
