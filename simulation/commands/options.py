"""Options that commands share; what is made of them, simulation/experiments/single_iteration.py says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from simulation.errors import SimulationError
from simulation.models.synthetic_trace import DEFAULT_BATCH, DEFAULT_TFLOPS
from simulation.simulator.play import Order

PLAIN_WIDTH = 120


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


model_options = together(
    click.option("--input", "pixels", type=int, help="Width of the model's square images [default: the model's own]."),
    click.option("--batch", default=DEFAULT_BATCH, show_default=True, help="Images per worker and iteration."),
    click.option("--forward", "forward", help="Time of the forward pass [default: published, else by --tflops]."),
    click.option("--backward", "backward", help="Time of the backward pass [default: likewise]."),
    click.option(
        "--tflops",
        type=float,
        help=f"Compute by operations at this rate, not by published times [for others: {DEFAULT_TFLOPS:g}].",
    ),
)

network_options = together(
    click.option("--latency", default="0us", show_default=True, help="One way, host to host."),
    click.option(
        "--overhead", default="0us", show_default=True, help="A host's link is taken so long by each message."
    ),
    click.option("--racks", default=1, show_default=True, help="Switches of a leaf-spine network; 1 is a star."),
    click.option("--oversubscription", default=1.0, show_default=True, help="Of each rack's way to the spine."),
    click.option("--store-and-aggregate", is_flag=True, help="Switches have the whole sum before they send it on."),
    click.option("--store-and-forward", is_flag=True, help="Switches have any whole message before they send it on."),
    click.option("--slots", default="0", help="Bytes that a switch can sum at a time [default: any]."),
)

job_options = together(
    click.option(
        "--message", default="0", help="Split tensors into messages of at most so many bytes [default: whole]."
    ),
    click.option(
        "--barrier",
        type=click.Choice(["global", "none"]),
        default="global",
        show_default=True,
        help="Between iterations. With none, the time is the mean of all but the first.",
    ),
    click.option(
        "--order",
        type=click.Choice([each.value for each in Order]),
        default=Order.ROUND_ROBIN.value,
        show_default=True,
        help="In which servers distribute.",
    ),
    click.option(
        "--pipelined",
        type=click.Choice(["yes", "no"]),
        help="The forward pass begins with the first layer's parameters [default: with servers].",
    ),
    click.option("--iterations", type=int, help="[default: 1; 3 without a barrier]"),
    click.option("--jitter", default=0.0, show_default=True, help="Of compute times: standard deviation over mean."),
    click.option("--straggler", "stragglers", multiple=True, metavar="RANK=FACTOR", help="A rank that is slower."),
    click.option("--seed", default=1, show_default=True, help="Of jitter and of the random order."),
)


def console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


# What says nothing where a trace has its times already, and where nothing is computed.
OF_A_MODEL = ("--input", "--forward", "--backward", "--tflops")
OF_COMPUTING = (*OF_A_MODEL, "--batch", "--jitter", "--straggler")


def typed(context: click.Context) -> list[str]:
    """The options on the command line, arguments by their names."""
    source = click.core.ParameterSource.COMMANDLINE
    return [p.opts[0] for p in context.command.params if context.get_parameter_source(p.name or "") is source]


def refuse_what_says_nothing(context: click.Context, has_trace: bool, has_model: bool) -> None:
    """Before anything is simulated.

    Args:
        has_trace: a trace is simulated, perhaps among models.
        has_model: a model is, perhaps among traces.

    Raises:
        SimulationError: an option on the command line would change nothing.
    """
    asked = typed(context)
    if has_trace and (idle := [option for option in OF_A_MODEL if option in asked]):
        raise SimulationError(f"{', '.join(idle)}: a trace has its own times; with --model this is legal")
    if not (has_trace or has_model) and (idle := [option for option in OF_COMPUTING if option in asked]):
        raise SimulationError(f"{', '.join(idle)}: an all-reduce computes nothing; with --model this is legal")
    if "--oversubscription" in asked and context.params["racks"] == 1:
        raise SimulationError("--oversubscription is of racks' ways to the spine: it needs --racks of 2 or more")
