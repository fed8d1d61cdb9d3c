"""`simulation sweep`: many runs, on all cores or a cluster."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import fields
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.mechanisms.mechanism import registered
from hostlib.strategies.strategy import choose
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text import units
from hostlib.text.output import output as standard_output
from simulation.commands.options import (
    RESPELLED,
    job_options,
    model_options,
    network_options,
    refuse_what_says_nothing,
)
from simulation.errors import SimulationError
from simulation.experiments.cost import require_playable
from simulation.experiments.scenario import Scenario, slowest_s
from simulation.experiments.single_iteration import network_of, scenario_of, semantics_of, subject_of
from simulation.models.workload_source import WorkloadSource, is_trace


@click.command(
    cls=Command,
    renamed={"--mechanisms": "--mechanism", "--models": "--model", "--bandwidths": "--bandwidth"},
    respelled=RESPELLED,
)
@click.option(
    "--model",
    "models",
    type=types.MODEL.listed(),
    default="resnet50",
    show_default=True,
    help="Models to train, or trace files.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    help="Mechanisms to compare [default: all that have a schedule].",
)
@click.option(
    "--bandwidth",
    "bandwidths",
    type=types.RATE.listed(),
    default="25gbit",
    show_default=True,
    help="Bandwidths of every host's link, each way.",
)
@click.option("--workers", type=types.COUNTED, default="8", show_default=True, help="Numbers of workers.")
@model_options
@network_options
@job_options
@click.option(
    "--output",
    type=types.ANY_FILE,
    help="Append results to this file, a JSON line each; points it has are not repeated.",
)
@click.option("--plot", type=types.ANY_FILE, help="Draw the results to this file (.svg, .png or .pdf).")
@click.option(
    "--plot-value",
    type=types.NAME,
    default="iteration_s",
    show_default=True,
    help="Value to draw: iteration_s, wall_s, events_per_s or memory_mb.",
)
@click.option("--processes", type=types.N, help="Number of parallel processes [default: one per core].")
@click.option("--cluster", type=types.ADDRESS_PORT, help="Run on a Dask cluster: the address of its scheduler.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
def sweep(**options: Any) -> None:
    """Simulate every combination of models, mechanisms, bandwidths and workers, on all cores or a cluster.

    \b
    Example
        simulation sweep --model vgg16,resnet50 --bandwidth 10gbit,100gbit --workers 8,64,512 --plot sweep.png
    """
    from simulation.experiments.parameter_sweep import Grid, Point, draw, require_plot, run_sweep

    as_json, as_csv = options.pop("as_json"), options.pop("as_csv")
    output, plot, value = options.pop("output"), options.pop("plot"), options.pop("plot_value")
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    require_plot(value, plot)
    processes, cluster = options.pop("processes"), options.pop("cluster")

    def listed(name: str) -> list[str]:
        return list(types.parts_of(options.pop(name)))

    options["mechanisms"] = options["mechanisms"] or ",".join(n for n, m in registered().items() if m.build is not None)
    mechanisms = listed("mechanisms")
    _require_all(models := listed("models"), mechanisms, bandwidths := listed("bandwidths"), options)
    grid = Grid(models, mechanisms, bandwidths, listed("workers"), options)
    subjects = {model: _subject(model, options) for model in models}

    def require(point: Point) -> None:
        scenario = scenario_of_point(point, subjects[point.model])
        require_playable(scenario)
        scenario.made()

    rows = run_sweep(grid, play_point, output, processes, cluster, Console(stderr=True), require)
    if plot is not None:
        draw(rows, value, plot)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    columns = [each.name for each in fields(Point) if each.name != "options"]
    measured = ["iteration_s", "events", "wall_s", "events_per_s", "memory_mb"]
    if as_csv:
        out = csv.writer(sys.stdout)
        out.writerow(columns + measured)
        out.writerows([row[name] for name in columns + measured] for row in rows)
        return
    table = Table(*columns)
    for name in measured:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(row[name]) for name in columns), *(f"{row[name]:,.4g}" for name in measured))
    standard_output().print(table)


def _require_all(models: list[str], mechanisms: list[str], bandwidths: list[str], options: dict[str, Any]) -> None:
    """Before the first point is played.

    Raises:
        SimulationError, HostlibError: one of them is none, or an option would change nothing.
    """
    traces = [is_trace(model) for model in models]
    refuse_what_says_nothing(click.get_current_context(), any(traces), not all(traces))
    for mechanism in mechanisms:
        choose(mechanism)
    if options["iterations"] is not None and options["iterations"] < 1:
        raise SimulationError(f"--iterations must be at least 1, not {options['iterations']}")
    for bandwidth in bandwidths:
        units.bandwidth(bandwidth)


def _subject(model: str, options: dict[str, Any]) -> WorkloadSource:
    return subject_of(model, None, None, options)[0]


def scenario_of_point(point: Any, subject: WorkloadSource | None = None) -> Scenario:
    """One point of a sweep, of a subject if that is there already."""
    options = dict(point.options)
    network = network_of(point.bandwidth, options)
    semantics = semantics_of(network, options)
    subject = subject or _subject(point.model, options)
    return scenario_of(subject, point.mechanism, point.workers, network, semantics, options)


def play_point(point: Any) -> dict[str, Any]:
    """One point of a sweep, in whatever process or on whatever machine it is to be played."""
    played = scenario_of_point(point).play()
    return {
        "iteration_s": slowest_s(played),
        "events": played.events,
        "kernel_s": played.kernel_s,
        "wall_s": played.wall_s,
    }


PLACE = 40
COMMANDS = (sweep,)
