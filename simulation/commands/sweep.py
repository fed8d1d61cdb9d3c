"""`simulation sweep`: many runs, on all cores or a cluster."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from hostlib.mechanisms.mechanism import registered
from simulation.commands.options import console, job_options, model_options, network_options
from simulation.experiments.single_iteration import job_of, network_of, subject_of
from simulation.models.architectures import BUILDERS
from simulation.simulator.play import play


@click.command()
@click.option("--models", default="resnet50", show_default=True, help="Models or trace files, separated by commas.")
@click.option("--mechanisms", help="Or STRATEGY/MECHANISM, separated by commas [default: all that have a schedule].")
@click.option("--bandwidths", default="25gbit", show_default=True, help="Separated by commas.")
@click.option("--workers", default="8", show_default=True, help="Separated by commas.")
@model_options
@network_options
@job_options
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results, a JSON line each; what is there is not run again."
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the results here (.png, .svg, .pdf).")
@click.option(
    "--plot-value", default="iteration_s", show_default=True, help="What to draw: also wall_s, events_per_s, memory_mb."
)
@click.option("--processes", type=int, help="How many at a time [default: all cores].")
@click.option("--cluster", metavar="ADDRESS", help="Run on a Dask cluster instead: its scheduler's address.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV.")
def sweep(**options: Any) -> None:
    """Play models x mechanisms x bandwidths x workers, on all cores or a cluster.

    \b
    Example
        simulation sweep --models vgg16,resnet50 --bandwidths 10gbit,100gbit --workers 8,64,512 --plot sweep.png
    """
    from simulation.experiments.parameter_sweep import Grid, Point, draw, require_plot, run_sweep

    as_json, as_csv = options.pop("as_json"), options.pop("as_csv")
    output, plot, value = options.pop("output"), options.pop("plot"), options.pop("plot_value")
    require_plot(value, plot)
    processes, cluster = options.pop("processes"), options.pop("cluster")

    def listed(name: str) -> list[str]:
        return [each.strip() for each in options.pop(name).split(",") if each.strip()]

    options["mechanisms"] = options["mechanisms"] or ",".join(n for n, m in registered().items() if m.build is not None)
    grid = Grid(listed("models"), listed("mechanisms"), listed("bandwidths"), listed("workers"), options)
    rows = run_sweep(grid, play_point, output, processes, cluster, Console(stderr=True))
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
    console().print(table)


def play_point(point: Any) -> dict[str, Any]:
    """One point of a sweep, in whatever process or on whatever machine it is to be played."""
    options = dict(point.options)
    network = network_of(point.bandwidth, options)
    is_file = point.model not in BUILDERS and Path(point.model).exists()
    subject, _ = subject_of(None if is_file else point.model, Path(point.model) if is_file else None, None, options)
    played = play(network, [job_of(subject, point.mechanism, point.workers, options)])
    return {
        "iteration_s": played.outcomes[0].iteration_s,
        "events": played.events,
        "kernel_s": played.kernel_s,
        "wall_s": played.wall_s,
    }


PLACE = 40
COMMANDS = (sweep,)
