"""`simulation run`: an iteration, or an experiment's cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hostlib.errors import HostlibError
from hostlib.schedules.contract import Collective, find_collective
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.output import output
from hostlib.text.progress_lines import PlainProgress
from simulation.answers.answer_table import show
from simulation.answers.assumptions import computing_speed
from simulation.answers.question import cells_of, compare, names_of, title_of
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
from simulation.experiments.experiment_file import Cell, read_experiment
from simulation.experiments.scenario import Scenario
from simulation.experiments.single_iteration import SimulatedIteration, simulate
from simulation.models.workload_source import is_trace
from simulation.predictors.predictor import DEFAULT_PREDICTOR, find_predictor, predictors


@click.command("run", cls=Command, respelled=RESPELLED)
@click.argument("experiment", required=False, type=types.ANY_FILE)
@cell_options
@model_options
@host_options
@network_options
@job_options
@click.option(
    "--collective",
    type=types.COLLECTIVE,
    default=Collective.ALL_REDUCE.value,
    show_default=True,
    help=f"What is done with the tensor of --size: {', '.join(each.value for each in Collective)}.",
)
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
    """Simulate an iteration of training a model, or one all-reduce or another collective.

    With EXPERIMENT, simulate every cell of that file; only --predictor and --json are then legal beside it.

    \b
    Examples
        simulation run emulation/experiments/ready/fabric-vs-host.toml
        simulation run --workers 32 --size 528MiB --bandwidth 25gbit
        simulation run --workers 8 --size 16MiB --collective reduce_scatter
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
    has_trace = trace_file is not None or (model is not None and is_trace(model))
    refuse_what_says_nothing(context, has_trace, model is not None)
    names = names_of(mechanisms, find_collective(options["collective"]))
    cells, what = cells_of(names, model, trace_file, size, workers, bandwidth, options, jobs, apart)
    if as_json:
        results = {cell.mechanism: result.as_json() for cell, result in _results(cells)}
        click.echo(json.dumps(next(iter(results.values())) if len(cells) == 1 else results, indent=2))
        return
    found = compare(cells, {}, computing_speed(cells[0]), options["seed"])
    bare_bytes = cells[0].subject.trace.bytes if cells[0].subject.bare else 0
    show(output(), found, title_of(what, cells[0], bandwidth), bare_bytes)


def _results(cells: Sequence[Scenario]) -> list[tuple[Scenario, SimulatedIteration]]:
    """Of the cells that can be played; the others are named on standard error.

    Raises:
        SimulationError, HostlibError: none of them can.
    """
    found = []
    errors: list[Exception] = []
    for cell in cells:
        try:
            found.append((cell, simulate(cell)))
        except (SimulationError, HostlibError) as error:
            errors.append(error)
            if len(cells) > 1:
                click.echo(f"left out: {cell.mechanism}: {error}", err=True)
    if not found:
        raise errors[0]
    return found


def _run_experiment(path: Path, name: str, as_json: bool) -> None:
    """All cells; what the command line says besides is refused, since the file says it."""
    context = click.get_current_context()
    if extra := [name for name in typed(context) if name not in ("experiment", "--predictor", "--json")]:
        raise SimulationError(
            f"{', '.join(extra)}: an experiment's file says this itself; with one, --predictor and --json are legal"
        )
    predictor = find_predictor(name)
    # The numbers that the cells have without a file; emulation predicts what it realises of them.
    experiment = read_experiment(path).as_described()
    rows = []
    with PlainProgress("simulating", len(experiment.cells)) as advance:
        for cell in experiment.cells:
            predicted = predictor.of_cell(experiment, cell)
            rows.append({**asdict(cell), "iteration_ms": None if predicted is None else predicted.iteration_s * 1e3})
            advance()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(*(each.name for each in fields(Cell)), title=experiment.title, title_justify="left")
    table.add_column("iteration (ms)", justify="right")
    for row in rows:
        *of_cell, ms = row.values()
        table.add_row(
            *("-" if each is None else str(each) for each in of_cell), "not simulated" if ms is None else f"{ms:.3f}"
        )
    output().print(table)


PLACE = 10
COMMANDS = (run_,)
