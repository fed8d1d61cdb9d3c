"""`emulation demo`: one model over several mechanisms, compared."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hostlib.system.interrupts import interrupt_on
from hostlib.system.renamed_options import CommandWithRenamedOptions


@click.command(cls=CommandWithRenamedOptions, renamed={"--world-size": "--workers", "--mechanisms": "--mechanism"})
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where result.json, the runs' results and logs go.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    default="inagg+mcast,ring,gloo",
    show_default=True,
    metavar="A,B,...",
    help="What to compare; see `hostlib mechanisms`.",
)
@click.option("--model", default="lenet", show_default=True, help="lenet or vgg.")
@click.option("--workers", "world_size", default=4, show_default=True, help="Workers.")
@click.option("--epochs", type=int, help="Epochs per run [default: those of `hostlib train`].")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Of weights, data and faults."
)
@click.option("--elements", default=256, show_default=True, help="int32 values per packet: 64 or 256.")
@click.option("--loss", default=0.0, help="Probability that a packet is lost, per switch port and direction.")
@click.option("--duplicate", default=0.0, help="Probability that a packet comes twice.")
@click.option("--reorder", default=0.0, help="Probability that a packet is held back 0.2 to 2 ms.")
@click.option(
    "--deadline", "deadline_s", default=30.0, show_default=True, help="Seconds without progress before a run ends."
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of the tables.")
def demo(mechanisms: str, as_json: bool, **options: Any) -> None:
    """Train one model over several mechanisms through a P4 switch of its own, and compare.

    Starts controller and switch on free ports, trains with the same seeds under each mechanism, checks that all ranks
    end with the same weights and that the switch completed exactly the predicted slots, and stops what it started.

    \b
    Example: the same weights in spite of a bad network
        emulation demo --loss 0.02 --duplicate 0.02 --reorder 0.02
    """
    from emulation.demo.cost_tables import print_demo
    from emulation.demo.training_demo import DemoConfig, run_demo

    interrupt_on(signal.SIGTERM)
    config = DemoConfig(mechanisms=tuple(name for name in mechanisms.split(",") if name), **options)
    result = run_demo(config, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        print_demo(result)
        click.echo(f"result: {config.output / 'result.json'}")


PLACE = 20
COMMANDS = (demo,)
