"""`emulation run FOLDER`: every experiment file of a folder, each in a directory of its own, compared together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from emulation.errors import EmulationError
from emulation.experiments.regret import Regret, regrets
from emulation.experiments.runner import ExperimentRun, Row, RunOptions
from hostlib.launch.fork_server import fork_server
from simulation.experiments.experiment_file import Cell, Experiment, read_experiment


def experiment_files(folder: Path) -> list[Path]:
    """The experiment files of a folder, by name; numbers in names count as such.

    Raises:
        EmulationError: it has none, or is the directory of an experiment's results.
    """
    if (folder / "run.json").exists():
        raise EmulationError(f"{folder} has the results of an experiment: name the experiment, with --output {folder}")
    files = sorted(folder.glob("*.toml"), key=_natural)
    if not files:
        raise EmulationError(f"{folder} has no experiment file: `emulation sample` writes some")
    return files


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.stem)]


class FolderRun:
    """The experiments of a folder, run one after the other; each continues where an earlier run stopped.

    Args:
        options: of each; `output` is the folder of their directories, which have the experiments' names.
        report: see ExperimentRun.

    Raises:
        EmulationError: see ExperimentRun; no experiment has a cell that `options.only` names.
    """

    def __init__(self, experiments: Sequence[Experiment], options: RunOptions, report: Callable[[Row], None]) -> None:
        chosen = [each for each in experiments if any(options.only in cell.name for cell in each.cells)]
        if not chosen:
            raise EmulationError(f"no cell of these experiments has {options.only!r} in its name")
        self.runs = [
            ExperimentRun(each, replace(options, output=options.output / each.folder), report) for each in chosen
        ]
        self._emulated = options.real is None

    @property
    def cells(self) -> list[Cell]:
        return [cell for run in self.runs for cell in run.cells]

    @property
    def left(self) -> list[Cell]:
        return [cell for run in self.runs for cell in run.left]

    def go(self) -> list[Row]:
        """Run the remaining cells; returns all rows, with their experiments' names and topologies.

        Raises:
            EmulationError, HostlibError: see ExperimentRun.go; the message names the experiment.
        """
        preloaded = dict.fromkeys(module for run in self.runs if run.left for module in run.preloaded)
        with fork_server(*preloaded) if preloaded and self._emulated else nullcontext() as forks:
            for run in self.runs:
                run.go(forks)
        return self.rows

    @property
    def rows(self) -> list[Row]:
        """Results so far."""
        return [
            {"experiment": run.experiment.name, "topology": dict(run.experiment.topology), **row}
            for run in self.runs
            for row in run.ordered
        ]

    @property
    def regrets(self) -> list[Regret]:
        """Of the recommended plans that were measured."""
        return regrets([run.experiment for run in self.runs], self.rows)


def read_folder(folder: Path) -> list[Experiment]:
    """Read all experiments of a folder.

    Raises:
        EmulationError: see experiment_files.
        ExperimentError: one cannot be read.
    """
    return [read_experiment(path) for path in experiment_files(folder)]


def errors_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Relative error of the simulated time by experiment and cell, of valid cells that were simulated."""
    return {
        f"{row['experiment']}: {row['cell']}": row["simulated_ms"] / row["iteration_ms"] - 1
        for row in rows
        if row["valid"] and row["simulated_ms"] is not None
    }


def _inside(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Of each valid cell with an interval, whether the emulated time is in it."""
    return [
        row["simulated_low_ms"] <= row["iteration_ms"] <= row["simulated_high_ms"]
        for row in rows
        if row["valid"] and row.get("simulated_low_ms") is not None
    ]


def comparison(rows: Sequence[Row], found: Sequence[Regret] = ()) -> dict[str, Any]:
    """The JSON of `emulation run FOLDER`: rows, their errors summarised by magnitude, and regrets if there are any."""
    errors, inside = errors_of(rows), _inside(rows)
    largest = max(errors, key=lambda name: abs(errors[name]), default=None)
    return {
        "cells": list(rows),
        "compared": len(errors),
        "median_error": median(map(abs, errors.values())) if errors else None,
        "largest_error": None if largest is None else abs(errors[largest]),
        "largest_error_of": largest,
        "with_interval": len(inside),
        "in_interval": sum(inside),
        **({"regrets": [asdict(each) for each in found]} if found else {}),
    }


def comparison_sentence(rows: Sequence[Row]) -> str:
    """The errors in one sentence."""
    of = comparison(rows)
    if not of["compared"]:
        return "no cell is valid and simulated: there is nothing to compare"
    return (
        f"simulated against emulated, {of['compared']} valid cells of {len(rows)}: median error "
        f"{of['median_error']:.1%}, largest {of['largest_error']:.1%} ({of['largest_error_of']}); "
        f"{of['in_interval']} of {of['with_interval']} are within the simulated interval"
    )
