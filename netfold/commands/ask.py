"""`netfold ask`: which mechanism suits a model and a network, and which plan is fastest."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click

from hostlib.system.command import Command, json_option
from hostlib.system.plot_file import require_drawable
from hostlib.text import option_types as types
from hostlib.text.common_options import together
from hostlib.text.output import output
from netfold.question import Asked, question
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
from simulation.errors import SimulationError
from simulation.models.workload_source import is_trace

TELL_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What --search takes besides a question."""

    examples: int | None
    epochs: int
    price: float | None
    gpu_memory: str | None
    profiled_on: str | None
    mix: Path | None
    report: Path | None


search_options = together(
    click.option(
        "--search",
        is_flag=True,
        help="Search strategies, mechanisms, pipelines, bucket sizes and slots for the fastest plan that fits.",
    ),
    click.option(
        "--examples", type=types.N, help="With --search: examples of the data set, for an epoch's time and cost."
    ),
    click.option("--epochs", type=types.N, default=1, show_default=True, help="With --examples: number of epochs."),
    click.option("--price", type=types.NUMBER, help="With --search: price of a GPU hour."),
    click.option(
        "--gpu-memory", type=types.SIZE.typed(), help="With --search: memory of each GPU [default: that of --gpu]."
    ),
    click.option(
        "--profile",
        "profiled_on",
        type=types.DEVICE,
        help="With --search: time the model's layers with a few batches on this device here, in place of assuming times.",
    ),
    click.option(
        "--mix",
        type=types.ANY_FILE,
        help="With --search: jobs of a cluster (TOML), to find what switches that aggregate are worth for all of them.",
    ),
    click.option("--report", type=types.ANY_FILE, help="With --search: write a page (HTML) to this file."),
)


@click.command(cls=Command, respelled=RESPELLED)
@cell_options
@model_options
@host_options
@network_options
@job_options
@click.option(
    "--links",
    type=types.ANY_FILE,
    help="Links between hosts as `hostlib bench --probe --output FILE` measured them, in place of --bandwidth and --latency.",
)
@click.option(
    "--calibration",
    type=types.ANY_FILE,
    help="Take intervals from measured times: a file that `netfold simulate calibrate --json` printed.",
)
@search_options
@click.option("--plot", type=types.ANY_FILE, help="Draw the times to this file (.svg, .png or .pdf).")
@json_option
def ask(
    model: str | None,
    trace_file: Path | None,
    size: str | None,
    bandwidth: str,
    search: bool,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Which mechanism suits my model and my network?

    Simulates every mechanism, compares the best that uses the switches with the best of the hosts alone, and says how
    sure that is: intervals hold what the simulator does not know. Mechanisms whose intervals overlap share a rank.

    With --search it recommends a plan: strategy, mechanism, pipeline stages, bucket size and slots, of those that fit
    into the GPUs' memory.

    \b
    Examples
        netfold ask --model resnet50 --workers 16 --bandwidth 25gbit
        netfold ask --model vgg16 --workers 64 --bandwidth 100gbit --racks 4 --oversubscription 3 --tflops 60
        netfold ask --model resnet50 --workers 32 --bandwidth 10gbit --plot answer.svg
        netfold ask --model resnet50 --workers 4 --links links.json
        netfold ask --search --model gpt2 --gpu a100 --workers 64 --bandwidth 100gbit --report page.html
    """
    context = click.get_current_context()
    has_trace = trace_file is not None or (model is not None and is_trace(model))
    names = typed(context)
    given = {name.removeprefix("--").replace("-", "_") for name in names}
    of_search = {each.name: options.pop(each.name) for each in fields(SearchOptions)}
    idle = [each.opts[0] for each in context.command.params if each.name in of_search and each.opts[0] in names]
    if idle and not search:
        raise SimulationError(f"{', '.join(idle)}: of a search; add --search")
    if not (search and of_search["mix"] is not None and model is None and not has_trace):
        refuse_what_says_nothing(context, has_trace, model is not None)
    require_drawable(plot)
    asked = Asked(model, trace_file, size, bandwidth, options, given)
    if search:
        _search(asked, SearchOptions(**of_search), plot, as_json)
        return
    found, cells, what = question(asked)
    title = title_of(what, cells[0], asked.rate_text)
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


def _search(asked: Asked, wanted: SearchOptions, plot: Path | None, as_json: bool) -> None:
    from netfold import job_mix
    from netfold.recommendation import recommendation
    from netfold.recommendation_page import require_writable, write_page
    from simulation.recommendation.recommendation import Wanted
    from simulation.recommendation.recommendation_table import show_recommendation

    examples, price, mix, report = wanted.examples, wanted.price, wanted.mix, wanted.report
    if asked.size is not None:
        raise SimulationError("--search is of a training: name a --model or --trace in place of --size")
    if wanted.epochs > 1 and examples is None:
        raise SimulationError("--epochs needs --examples, the size of the data set")
    if price is not None and examples is None and mix is None:
        raise SimulationError("--price needs --examples, the size of the data set, or --mix")
    of_run = Wanted(examples, wanted.epochs, price)
    if mix is not None and asked.options["links"] is not None:
        raise SimulationError(
            "--links is of one job's hosts, and the jobs of --mix have hosts of their own; leave one out"
        )
    if report is not None:
        require_writable(report)
    tell = _teller()
    value = None
    if mix is not None:
        value = job_mix.value_of(mix, asked, wanted.gpu_memory, price, tell)
    console = output()
    if asked.model is None and asked.trace is None and value is not None:
        if plot is not None or report is not None:
            raise SimulationError("--plot, --report: of one model's plans; with --model they are legal")
        if as_json:
            click.echo(json.dumps({"mix": value.as_json()}, indent=2))
            return
        say(console, value.text)
        console.print(job_mix.mix_table(value))
        return
    if wanted.profiled_on is not None:
        from netfold.profiled import profiled

        tell(f"profiling {asked.model} on {wanted.profiled_on}")
        if asked.model is None:
            raise SimulationError("--profile is of a model: name one with --model in place of --trace")
        times = profiled(asked.model, asked.options, wanted.profiled_on)
        asked = replace(asked, options={**asked.options, **times}, given={*asked.given, *times})
    found, cell, what = recommendation(asked, of_run, wanted.gpu_memory, tell)
    title = title_of(what, cell, asked.rate_text)
    if plot is not None and found.answer is not None:
        draw(found.answer, title, plot)
    if report is not None:
        write_page(found, title, cell, value, report)
    if as_json:
        of_mix = {} if value is None else {"mix": value.as_json()}
        click.echo(json.dumps({**found.as_json(), **of_mix}, indent=2))
    else:
        show_recommendation(console, found, title)
        if value is not None:
            say(console, value.text)
            console.print(job_mix.mix_table(value))
    if report is not None:
        click.echo(f"report: {report}", err=as_json)


def _teller() -> Callable[[str], None]:
    """Prints lines of progress on standard error, once the work takes long."""
    began = time.monotonic()

    def tell(line: str) -> None:
        if time.monotonic() - began >= TELL_AFTER_S:
            click.echo(f"searching: {line}", err=True)

    return tell


PLACE = 0
COMMANDS = (ask,)
