"""`simulation run`: an iteration, or an experiment's cells."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hostlib.mechanisms.mechanism import registered
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.text.progress_lines import PlainProgress
from simulation.commands.options import (
    MODELS,
    RESPELLED,
    job_options,
    model_options,
    network_options,
    refuse_what_says_nothing,
    typed,
)
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import Cell, read_experiment
from simulation.experiments.single_iteration import (
    SimulatedIteration,
    network_of,
    scenario_of,
    semantics_of,
    simulate,
    subject_of,
)
from simulation.experiments.verdict import verdict
from simulation.models.workload_source import is_trace
from simulation.predictors.predictor import DEFAULT_PREDICTOR, find_predictor, predictors


@click.command("run", cls=Command, respelled=RESPELLED)
@click.argument("experiment", required=False, type=types.ANY_FILE)
@click.option(
    "--mechanism",
    "mechanisms",
    type=types.MECHANISM.listed(),
    multiple=True,
    help="Mechanisms to compare [default: all that have a schedule].",
)
@click.option("--model", type=types.MODEL, help=f"Model to train: {MODELS}.")
@click.option("--trace", "trace_file", type=types.ANY_FILE, help="Train what this trace describes.")
@click.option(
    "--size", type=types.SIZE.typed(), help="Simulate one all-reduce of this size, without a model [default: 16MiB]."
)
@click.option("--workers", type=types.N, default=4, show_default=True, help="Number of workers.")
@click.option(
    "--bandwidth",
    type=types.RATE.typed(),
    default="25gbit",
    show_default=True,
    help="Bandwidth of every host's link, each way.",
)
@click.option("--jobs", type=types.N, default=1, show_default=True, help="Number of identical jobs at the same time.")
@click.option("--apart", is_flag=True, help="Give each job its own hosts, so that jobs share only switches.")
@model_options
@network_options
@job_options
@click.option(
    "--predictor",
    type=types.NAME,
    default=DEFAULT_PREDICTOR,
    show_default=True,
    help=f"Predictor of an experiment's cells: {', '.join(predictors().specs)}.",
)
@json_option
def run_(
    experiment: Path | None,
    mechanisms: tuple[str, ...],
    model: str | None,
    trace_file: Path | None,
    size: str | None,
    workers: int,
    bandwidth: str,
    jobs: int,
    apart: bool,
    predictor: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate an iteration of training a model, or one all-reduce.

    With EXPERIMENT, simulate every cell of that file; only --predictor and --json are then legal beside it.

    \b
    Examples
        simulation run emulation/experiments/ready/fabric-vs-host.toml
        simulation run --workers 32 --size 528MiB --bandwidth 25gbit
        simulation run --model vgg16 --mechanism ring --workers 32 --bandwidth 25gbit
        simulation run --model vgg19 --mechanism ring,hybcomm/ring,poseidon,cgdp
        simulation run --model resnet50 --workers 64 --racks 4 --oversubscription 3
    """
    if experiment is not None:
        _run_experiment(experiment, predictor, as_json)
        return
    context = click.get_current_context()
    if "--predictor" in typed(context):
        raise SimulationError("--predictor is of an EXPERIMENT's cells: name its file")
    if apart and jobs == 1:
        raise SimulationError("--apart is of several jobs: it needs --jobs of 2 or more")
    has_trace = trace_file is not None or (model is not None and is_trace(model))
    refuse_what_says_nothing(context, has_trace, model is not None)
    mechanisms = tuple(name for names in mechanisms for name in names.split(","))
    network, semantics = network_of(bandwidth, options), semantics_of(options)
    subject, what = subject_of(model, trace_file, size, options)
    results: dict[str, SimulatedIteration] = {
        name: simulate(scenario_of(subject, name, workers, network, semantics, options, jobs, apart))
        for name in mechanisms or _playable()
    }
    if as_json:
        printed = {name: result.as_json() for name, result in results.items()}
        click.echo(json.dumps(next(iter(printed.values())) if len(mechanisms) == 1 else printed, indent=2))
        return
    in_racks = f" in {network.racks} racks" if network.racks > 1 else ""
    oversubscribed = f", oversubscription {network.oversubscription:g}" if network.oversubscription != 1 else ""
    title = f"{what}, {workers} workers{in_racks}, {bandwidth} links{oversubscribed}"
    table = Table("mechanism", title=title, title_justify="left")
    for heading in ("time (ms)", "algbw (Gbit/s)", "busiest link (MB)", "events", "wall (s)"):
        table.add_column(heading, justify="right")
    for name, result in sorted(results.items(), key=lambda each: each[1].iteration_s):
        seconds = result.iteration_s
        busiest = max(max(link.values()) for link in result.bytes_per_link.values())
        algbw = f"{subject.trace.bytes * 8 / seconds / 1e9:.2f}" if seconds else "-"
        table.add_row(name, f"{seconds * 1e3:.3f}", algbw, f"{busiest / 1e6:.2f}", f"{result.events:,}",
                      f"{result.wall_s:.2f}")  # fmt: skip
    output().print(table)
    if (sentence := verdict(results)) is not None:
        output().print(sentence)


def _run_experiment(path: Path, name: str, as_json: bool) -> None:
    """All cells; what the command line says besides is refused, since the file says it."""
    context = click.get_current_context()
    if extra := [name for name in typed(context) if name not in ("experiment", "--predictor", "--json")]:
        raise SimulationError(
            f"{', '.join(extra)}: an experiment's file says this itself; with one, --predictor and --json are legal"
        )
    predictor = find_predictor(name)
    experiment = read_experiment(path)
    rows = []
    with PlainProgress("simulating", len(experiment.cells)) as advance:
        for cell in experiment.cells:
            predicted = predictor.predict(experiment, cell)
            rows.append({**asdict(cell), "iteration_ms": None if predicted is None else predicted.iteration_s * 1e3})
            advance()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*(each.name for each in fields(Cell)), title=experiment.title, title_justify="left")
    table.add_column("iteration (ms)", justify="right")
    for row in rows:
        *of_cell, ms = row.values()
        table.add_row(*map(str, of_cell), "not simulated" if ms is None else f"{ms:.3f}")
    output().print(table)


def _playable() -> tuple[str, ...]:
    """All mechanisms that have a schedule."""
    return tuple(name for name, each in registered().items() if each.build is not None)


PLACE = 10
COMMANDS = (run_,)
