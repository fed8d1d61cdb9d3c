"""`emulation bench`: how fast the embedded switch is here."""

from __future__ import annotations

import json
import os
import signal

import click
from rich.console import Console

from emulation.errors import EmulationError
from hostlib.system.command import Command, json_option
from hostlib.system.interrupts import interrupt_on
from hostlib.text import option_types as types

SHORTEST_S = 0.1


@click.command(cls=Command, renamed={"--seconds": "--duration"})
@click.option(
    "--duration",
    type=types.TIME,
    default="2s",
    show_default=True,
    help="How long each measurement takes, approximately; at least 100ms.",
)
@json_option
def bench(duration: float, as_json: bool) -> None:
    """Measure the speed of the embedded switch on this machine. Needs root, for network namespaces.

    Measures one aggregation packet in process; aggregated elements per second between network interfaces, with four
    ranks, also of BMv2 if simple_switch_grpc is on PATH; and gradient bits per second of two ranks on loopback.
    """
    if not duration >= SHORTEST_S:
        raise EmulationError(f"--duration must be at least {SHORTEST_S:g}s, not {duration:g}s")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.benchmarks.switch_rates import print_bench, run_bench

    interrupt_on(signal.SIGTERM)
    result = run_bench(duration, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        print_bench(result)


PLACE = 60
COMMANDS = (bench,)
