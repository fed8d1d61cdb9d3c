"""`simulation trace`: make one, edit one, look at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hostlib.system.command import Command, json_option
from hostlib.system.command_group import Group
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.traces.trace import Trace, as_json_object, as_text, read, write
from simulation.commands.options import MODELS, model_options
from simulation.errors import SimulationError
from simulation.experiments.single_iteration import trace_of

EVERY = ".*"
MOST_TIMES, MOST_COPIES = 10**6, 10**4


@click.group(cls=Group, invoke_without_command=True)
@click.option("--model", type=types.MODEL, help=f"Model to make a trace of: {MODELS}.")
@model_options
@click.option("--output", type=types.ANY_FILE, help="Write the trace to this file [default: print it].")
@json_option
@click.pass_context
def trace(context: click.Context, /, model: str | None, output: Path | None, as_json: bool, **options: Any) -> None:
    """Make a trace of a model from its architecture and compute times; edit a trace, or show one.

    \b
    Examples
        simulation trace --model vgg16 --input 299 --output vgg16.trace
        simulation trace edit vgg16.trace --scale-compute 0.5 --output faster.trace
    """
    if context.invoked_subcommand is not None:
        return
    if model is None:
        raise SimulationError(f"--model is missing; legal are {MODELS}")
    _put(trace_of(model, options), output, as_json)


@trace.command(cls=Command, renamed={"--layers": "--match"})
@click.argument("file", type=types.ANY_FILE)
@click.option("--scale-compute", type=types.FACTOR, help="Multiply compute times by this.")
@click.option("--scale-sizes", type=types.FACTOR, help="Multiply the sizes of parameters by this.")
@click.option(
    "--match",
    "layers",
    type=types.REGEX,
    default=EVERY,
    show_default=True,
    help="Edit only layers whose name matches this.",
)
@click.option("--add", type=types.N, help="Add this many copies of the layers, behind the last of them.")
@click.option("--output", type=types.ANY_FILE, help="Write the trace to this file [default: print it].")
@json_option
def edit(
    file: Path,
    scale_compute: float | None,
    scale_sizes: float | None,
    layers: str,
    add: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Edit a trace: scale compute times or sizes, or add layers.

    \b
    Example
        simulation trace edit inception3.trace --match Mixed_6e/ --add 25 --output deeper.trace
    """
    edited = read(file)
    for what, factor in (("--scale-compute", scale_compute), ("--scale-sizes", scale_sizes)):
        if factor is not None and not 0 < factor < float("inf"):
            raise SimulationError(f"{what} must be above 0, not {factor}")
        if factor is not None and factor > MOST_TIMES:
            raise SimulationError(f"{what} must be at most {MOST_TIMES}, not {factor:g}")
    if add is not None and add < 1:
        raise SimulationError(f"--add must be at least 1, not {add}")
    if add is not None and add > MOST_COPIES:
        raise SimulationError(f"--add must be at most {MOST_COPIES}, not {add}")
    if layers != EVERY and scale_compute is scale_sizes is add is None:
        raise SimulationError("--match says of which layers: of what, --scale-compute, --scale-sizes or --add says")
    if scale_compute is not None:
        edited = edited.scale_compute(scale_compute, layers)
    if scale_sizes is not None:
        edited = edited.scale_sizes(scale_sizes, layers)
    if add is not None:
        edited = edited.add_layers(layers, add)
    _put(edited, output, as_json)


@trace.command(cls=Command)
@click.argument("file", type=types.ANY_FILE)
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show the layers of a trace, with their times and sizes."""
    shown = read(file)
    if as_json:
        _put(shown, None, as_json)
        return
    table = Table("layer", title=f"{file}: {shown.bytes / 1e6:.2f} MB of gradients", title_justify="left")
    for heading in ("forward (ms)", "backward (ms)", "bytes"):
        table.add_column(heading, justify="right")
    for layer in shown.layers:
        held = sum(p.bytes for p in shown.parameters if p.layer == layer.name and p.trained)
        table.add_row(layer.name, f"{layer.forward_ns / 1e6:.3f}", f"{layer.backward_ns / 1e6:.3f}", f"{held:,}")
    output().print(table)


def _put(made: Trace, output: Path | None, as_json: bool) -> None:
    if output is not None:
        try:
            write(made, output)
        except OSError as error:
            raise SimulationError(f"{output} cannot be written: {error.strerror}") from None
    if as_json:
        click.echo(json.dumps(as_json_object(made)))
    elif output is None:
        click.echo(as_text(made), nl=False)


PLACE = 20
COMMANDS = (trace,)
