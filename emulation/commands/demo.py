"""`emulation demo`: one model over several mechanisms, compared."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hostlib.system.command import Command, json_option
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types
from hostlib.text.common_options import faults


@click.command(cls=Command, renamed={"--world-size": "--workers", "--mechanisms": "--mechanism"})
@click.option(
    "--output",
    type=types.FOLDER,
    default=Path("build/demo"),
    show_default=True,
    help="Folder for result.json, the runs' results and logs.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    default="inagg+mcast,ring,gloo",
    show_default=True,
    help="Mechanisms to compare; see `netfold mechanisms`.",
)
@click.option("--model", type=types.MODEL, default="lenet", show_default=True, help="Model to train: lenet or vgg.")
@click.option("--workers", "world_size", type=types.N, default=4, show_default=True, help="Number of workers.")
@click.option("--epochs", type=types.N, help="Passes over the training data [default: as `netfold train`].")
@click.option("--seed", type=types.SEED, default=1, show_default=True, help="Seed of weights, data and faults.")
@click.option(
    "--elements",
    type=types.N,
    default=256,
    show_default=True,
    help="Elements (int32) per packet: 64, 256, 1024 or 2048.",
)
@faults("--loss", "--duplicate", "--reorder")
@click.option(
    "--deadline",
    "deadline_s",
    type=types.TIME,
    default="30s",
    show_default=True,
    help="How long a rank may make no progress before the run ends and names it.",
)
@json_option
def demo(mechanisms: str, as_json: bool, **options: Any) -> None:
    """Train a model with several mechanisms through a P4 switch, and compare them.

    Starts a controller and a switch on free ports, trains from the same seed with each mechanism, checks that all ranks
    end with the same weights and that the switch completed exactly the predicted slots, and stops what it started.

    \b
    Example: the same weights in spite of a bad network
        emulation demo --loss 0.02 --duplicate 0.02 --reorder 0.02
    """
    from emulation.demo.cost_tables import print_demo
    from emulation.demo.training_demo import DemoConfig, run_demo

    interrupt_on(signal.SIGTERM)
    require_installed("torch", "sklearn", *CONTROLLER)
    config = DemoConfig(mechanisms=tuple(name for name in mechanisms.split(",") if name), **options)
    result = run_demo(config, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        print_demo(result)
        click.echo(f"result: {config.output / 'result.json'}")


PLACE = 20
COMMANDS = (demo,)
