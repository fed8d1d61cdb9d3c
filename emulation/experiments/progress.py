"""Progress display and result tables of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from emulation.experiments.experiment_folder import FolderRun, comparison_sentence
from emulation.experiments.runner import ExperimentRun
from emulation.report.axis_units import milliseconds
from hostlib.text.output import output
from simulation.experiments.experiment_file import Experiment
from simulation.predictors.predictor import DEFAULT_PREDICTOR

Row = dict[str, Any]


class Cells(Protocol):
    """A run's cells, and those that are left."""

    @property
    def cells(self) -> Sequence[Any]: ...

    @property
    def left(self) -> Sequence[Any]: ...


class RunProgress:
    """Shows the current cell: a bar on a terminal, else a line for each cell.

    Args:
        times: whether times are meaningful.
        predictor: the predictor of the rows' simulated times.
    """

    def __init__(self, console: Console, times: bool = True, predictor: str = DEFAULT_PREDICTOR) -> None:
        self._console, self._times, self._predictor = console, times, predictor
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        clocks = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, *clocks, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("starting", total=None)

    @contextmanager
    def of(self, run: Cells) -> Iterator[None]:
        self._progress.update(self._task, total=len(run.cells), completed=len(run.cells) - len(run.left))
        with self._progress:
            yield

    def report(self, event: Row) -> None:
        """See emulation.experiments.runner.ExperimentRun."""
        if event["event"] == "row":
            self._progress.advance(self._task)
            line = _line(event, self._predictor) if self._times else f"{event['cell']}: done"
            self._console.print(line, highlight=False)
            return
        if event["event"] == "failed":
            self._progress.advance(self._task)
            self._console.print(f"{event['cell']} [red]failed[/red]: {event['why']}", highlight=False)
            return
        what = f"{event['cell']}, {event['dilation']:g} times slower"
        if event["event"] == "again":
            self._console.print(f"{event['cell']} again: {event['why']}", highlight=False)
        self._progress.update(self._task, description=what)


def _name_of_times(predictor: str) -> str:
    """What messages call a predictor's times."""
    return "simulated" if predictor == DEFAULT_PREDICTOR else predictor


def _line(row: Row, predictor: str) -> str:
    simulated = (
        "" if row["simulated_ms"] is None else f", {_name_of_times(predictor)} {milliseconds(row['simulated_ms'])}"
    )
    invalid = "" if row["valid"] else f" [red]invalid[/red]: {row['bottleneck']}"
    return f"{row['cell']}: {milliseconds(row['iteration_ms'])}{simulated}{invalid}"


def print_rows(experiment: Experiment, rows: list[Row], predictor: str = DEFAULT_PREDICTOR) -> None:
    """Print results.json as a table.

    Args:
        predictor: the predictor of the rows' simulated times.
    """
    table = Table("model", "mechanism", title=experiment.title, title_justify="left", box=None)
    # Columns that most experiments do not vary.
    more = [name for name in ("slots", "delay") if len({row.get(name) for row in rows}) > 1]
    counted = ["again", *(["marked"] if any(row.get("marked") for row in rows) else [])]
    for heading in (
        "workers", "bandwidth", "loss", "jobs", *more, "iteration", "spread", _name_of_times(predictor), "error", *counted,
        "valid",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        simulated_ms, error = row["simulated_ms"], error_of(row)
        table.add_row(
            row["model"],
            row["mechanism"],
            str(row["workers"]),
            row["bandwidth"],
            f"{row['loss']:g}",
            str(row["jobs"]),
            *(str(row.get(name, "-")) for name in more),
            milliseconds(row["iteration_ms"]),
            f"{row['iteration_ms_spread'] / row['iteration_ms']:.1%}",
            "-" if simulated_ms is None else milliseconds(simulated_ms),
            "-" if error is None else f"{error:+.1%}",
            str(row["retransmits"]),
            *(str(row.get("marked") or 0) for _ in counted[1:]),
            "yes" if row["valid"] else "[red]no[/red]",
        )
    output().print(table)


def print_comparison(rows: list[Row], predictor: str = DEFAULT_PREDICTOR) -> None:
    """Print the rows of a folder's experiments, with their errors."""
    table = Table("experiment", "cell", "topology", box=None)
    for heading in ("emulated", _name_of_times(predictor), "error", "valid"):
        table.add_column(heading, justify="right")
    for row in rows:
        error = error_of(row)
        table.add_row(
            row["experiment"],
            row["cell"],
            " ".join(str(value) for value in row["topology"].values()) or "star",
            milliseconds(row["iteration_ms"]),
            "-" if row["simulated_ms"] is None else milliseconds(row["simulated_ms"]),
            "-" if error is None else f"{error:+.1%}",
            "yes" if row["valid"] else "[red]no[/red]",
        )
    output().print(table)
    output().print(comparison_sentence(rows), highlight=False)


def error_of(row: Mapping[str, Any]) -> float | None:
    """Deviation of the simulated time from the emulated one; None if nothing was simulated."""
    return None if row["simulated_ms"] is None else row["simulated_ms"] / row["iteration_ms"] - 1


def listed_cells(run: ExperimentRun | FolderRun) -> list[Row]:
    """What would be run, as JSON has it."""
    if isinstance(run, FolderRun):
        return [{"experiment": each.experiment.name, **row} for each in run.runs for row in listed_cells(each)]
    left = set(run.left)
    return [{"cell": c.name, "dilation": run.dilation(c), "done": c not in left} for c in run.cells]


def print_cells(run: ExperimentRun | FolderRun) -> None:
    """Print the cells that would be run."""
    table = Table(*(("experiment",) if isinstance(run, FolderRun) else ()), "cell", box=None)
    table.add_column("dilation", justify="right")
    table.add_column("done")
    for row in listed_cells(run):
        *names, dilation, done = row.values()
        table.add_row(*names, f"{dilation:g}", "yes" if done else "")
    output().print(table)


def print_ready(experiments: Mapping[str, Experiment]) -> None:
    """Print netfold's own experiments."""
    table = Table("name", "cells", "what it asks", box=None)
    for name, experiment in experiments.items():
        table.add_row(name, str(len(experiment.cells)), experiment.title)
    output().print(table)
