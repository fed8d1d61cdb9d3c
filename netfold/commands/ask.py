"""`netfold ask`: which mechanism suits a model and a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hostlib.system.command import Command, json_option
from hostlib.system.plot_file import require_drawable
from hostlib.text import option_types as types
from hostlib.text.output import output
from netfold.question import question
from simulation.answers.answer_table import assumption_lines, draw, remarks, say, show
from simulation.answers.question import title_of
from simulation.commands.options import (
    RESPELLED,
    cell_options,
    host_options,
    job_options,
    model_options,
    network_options,
    refuse_what_says_nothing,
    typed,
)
from simulation.models.workload_source import is_trace


@click.command(cls=Command, respelled=RESPELLED)
@cell_options
@model_options
@host_options
@network_options
@job_options
@click.option("--plot", type=types.ANY_FILE, help="Draw the times to this file (.svg, .png or .pdf).")
@json_option
def ask(
    model: str | None,
    trace_file: Path | None,
    size: str | None,
    bandwidth: str,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Which mechanism suits my model and my network?

    Simulates every mechanism, compares the best that uses the switches with the best of the hosts alone, and says how
    sure that is: intervals hold what the simulator does not know. Mechanisms whose intervals overlap share a rank.

    \b
    Examples
        netfold ask --model resnet50 --workers 16 --bandwidth 25gbit
        netfold ask --model vgg16 --workers 64 --bandwidth 100gbit --racks 4 --oversubscription 3 --tflops 60
        netfold ask --model resnet50 --workers 32 --bandwidth 10gbit --plot answer.svg
    """
    context = click.get_current_context()
    has_trace = trace_file is not None or (model is not None and is_trace(model))
    refuse_what_says_nothing(context, has_trace, model is not None)
    require_drawable(plot)
    given = {name.removeprefix("--").replace("-", "_") for name in typed(context)}
    found, cells, what = question(model, trace_file, size, bandwidth, options, given)
    title = title_of(what, cells[0], bandwidth)
    if plot is not None:
        draw(found, title, plot)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
        for line in remarks(found):
            click.echo(line, err=True)
        return
    console = output()
    show(console, found, title, cells[0].subject.trace.bytes if cells[0].subject.bare else 0)
    for line in assumption_lines(found):
        say(console, line)


PLACE = 0
COMMANDS = (ask,)
