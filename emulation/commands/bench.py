"""`emulation bench`: how fast the embedded switch is here."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict

import click
from rich.console import Console

from hostlib.system.interrupts import interrupt_on
from hostlib.system.number_types import Finite


@click.command()
@click.option(
    "--seconds",
    type=Finite(min=0.1),
    default=2.0,
    show_default=True,
    help="How long each of the measurements takes, about.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def bench(seconds: float, as_json: bool) -> None:
    """Measure the embedded switch on this machine; needs root, for a network namespace of its own.

    One aggregation packet in process; aggregated elements per second between network interfaces, four ranks, beside
    BMv2 where simple_switch_grpc is on PATH; and the gradient bits per second of two ranks on loopback.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.benchmarks.switch_rates import print_bench, run_bench

    interrupt_on(signal.SIGTERM)
    result = run_bench(seconds, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    else:
        print_bench(result)


PLACE = 60
COMMANDS = (bench,)
