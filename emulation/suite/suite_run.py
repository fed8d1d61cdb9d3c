"""Run a selection of the suite, and keep its directory: experiment files, their results, and the suite's own rows."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, StrictStr, TypeAdapter

from emulation.errors import EmulationError
from emulation.experiments.experiment_folder import FolderRun
from emulation.experiments.run_directory import read_record
from emulation.experiments.runner import RunOptions, alone
from emulation.report.axis_units import size
from emulation.suite.selection import Selection, SuiteCell, Way, require_readable, write_files
from hostlib.errors import HostlibError
from hostlib.system.machine import cpu_name, memory_gib
from hostlib.system.process import write_whole
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import Experiment, read_experiment
from simulation.models.architectures import build
from simulation.predictors.predictor import Estimate, find_predictor

Row = dict[str, Any]
RECORD, RESULTS = "suite.json", "results.json"
TAKEN = (
    "iteration_ms",
    "valid",
    "bottleneck",
    "dilation",
    "enough_dilation",
    "peak_memory_bytes",
)  # from an experiment's row


class SuiteRow(BaseModel):
    """A line of a suite's results.json; `failed` says why a cell has no times.

    Attributes:
        batch: examples of a worker and iteration.
        epoch_s: of the data set's images, at the measured time of an iteration.
        speedup: relative to the same data set and network on one worker; None without that.
        peak_memory_bytes: of the largest worker's process, if it trained.
        memory_bytes: predicted, of the worker that needs most, if it is simulated and enough is known of the model.
    """

    cell: StrictStr
    dataset: StrictStr
    network: StrictStr
    framework: StrictStr
    model: StrictStr
    mechanism: StrictStr
    workers: int
    bandwidth: StrictStr
    batch: int
    parameters: int
    way: StrictStr
    iteration_ms: float | None
    epoch_s: float | None
    images_per_s: float | None
    speedup: float | None = None
    peak_memory_bytes: int | None = None
    memory_bytes: int | None = None
    valid: bool
    bottleneck: str | None = None
    dilation: float | None = None
    enough_dilation: float | None = None
    failed: str | None = None


class SuiteRecord(BaseModel):
    """The fields of suite.json that a later run, or a report, reads."""

    selection: dict[str, Any]
    predictor: StrictStr
    started: StrictStr
    finished: str | None = None
    machine: dict[str, Any]
    versions: dict[str, str]


class SuiteRun:
    """A selection and its directory.

    Args:
        options: where and how experiments run; `output` is the directory. Of simulated cells, only `output`, `only` and
            `predictor` count.

    Raises:
        EmulationError: the directory holds something else, or is broken; no cell is left.
        UnknownNameError, SpecError: see find_predictor.
    """

    def __init__(self, selection: Selection, options: RunOptions) -> None:
        self.selection, self.options = selection, options
        self.output = options.output
        self._predictor = find_predictor(options.predictor)
        possible, self.left_out = selection.cells()
        self.cells = [cell for cell in possible if options.only in cell.name]
        if not self.cells:
            why = next(iter(self.left_out.values()), f"none has {options.only!r} in its name")
            raise EmulationError(f"the suite has no cell that can run: {why}")
        self._files = selection.files(possible)
        self._order = {cell.name: number for number, cell in enumerate(possible)}
        self.rows = self._earlier()

    @property
    def left(self) -> list[SuiteCell]:
        """The cells without times, and those whose times are not valid, if they can run more slowly now."""
        return [cell for cell in self.cells if not self._is_done(self.rows.get(cell.name))]

    def _is_done(self, row: Row | None) -> bool:
        return row is not None and row["failed"] is None and not self.options.repeats(row)

    def _earlier(self) -> dict[str, Row]:
        record = self._earlier_record()
        if record is None:
            return {}
        if record.selection != self.selection.as_json():
            changed = ", ".join(
                name for name, value in self.selection.as_json().items() if record.selection.get(name) != value
            )
            raise EmulationError(
                f"{self.output} holds another selection of the suite ({changed}): name another --output"
            )
        if record.predictor != self.options.predictor:
            raise EmulationError(
                f"{self.output} has times of the predictor {record.predictor}, not of {self.options.predictor}: continue "
                f"with --predictor {record.predictor}, or name another --output"
            )
        return {row["cell"]: row for row in read_rows(self.output)}

    def _earlier_record(self) -> SuiteRecord | None:
        if (self.output / RECORD).exists():
            return read_suite(self.output)
        if self.output.exists() and any(self.output.iterdir()):
            raise EmulationError(f"{self.output} holds other things than a suite: name another --output")
        return None

    def go(self, report: Callable[[Row], None]) -> list[Row]:
        """Run the remaining cells; returns all rows.

        Args:
            report: see ExperimentRun; of a simulated cell, only {"event": "row", "cell": name}.

        Raises:
            EmulationError, HostlibError, SimulationError: see FolderRun. A cell that fails gets a row that says why.
        """
        if self.selection.way is Way.TRAIN:
            require_readable(self.selection)
        with alone(self.output):
            self.rows = self._earlier()
            self._record(None)
            paths = write_files(self.output, self._files)
            wanted = {cell.file for cell in self.left}
            experiments = [read_experiment(path) for path in paths if path.stem in wanted]
            if self.selection.way is Way.SIMULATE:
                self._simulate(experiments, report)
            elif experiments:
                self._measure(experiments, report)
            self._record(_now())
        return self.ordered

    def _measure(self, experiments: list[Experiment], report: Callable[[Row], None]) -> None:
        by_name = {cell.name: cell for cell in self.left}

        def heard(event: Row) -> None:
            cell = by_name.get(event["cell"])
            if event["event"] == "failed" and cell is not None:
                self._keep(cell, {"failed": event["why"]})
            elif event["event"] == "row" and cell is not None:
                self._keep(cell, {name: event[name] for name in TAKEN})
            report(event)

        run = FolderRun(experiments, replace(self.options, keep_going=True), heard)
        for row in run.rows:  # measured by a run that was killed before the suite had them
            if row["cell"] not in self.rows:
                heard({"event": "row", **row})
        run.go()

    def _simulate(self, experiments: list[Experiment], report: Callable[[Row], None]) -> None:
        predictor, limit = self._predictor, self.selection.memory_bytes
        by_name = {cell.name: cell for cell in self.left}
        for experiment in experiments:
            described = experiment.as_described()
            for cell in experiment.cells:
                if cell.name not in by_name:
                    continue
                what: Row = {"failed": f"{predictor.name} does not predict it"}
                try:
                    if (found := predictor.of_cell(described, cell, memory_bytes=limit)) is not None:
                        what = {"memory_bytes": found.memory_bytes} | _time_of(found, limit)
                except (SimulationError, HostlibError) as error:
                    what = {"failed": str(error)}
                self._keep(by_name[cell.name], what)
                report({"event": "row", "cell": cell.name})

    def _keep(self, cell: SuiteCell, measured: Mapping[str, Any]) -> None:
        self.rows[cell.name] = row_of(cell, self.selection.way, measured)
        with_speedups(self.ordered)
        write_whole(self.output / RESULTS, self.ordered)

    def _record(self, finished: str | None) -> None:
        earlier = self._earlier_record()
        write_whole(
            self.output / RECORD,
            {
                "selection": self.selection.as_json(),
                "command": self.options.command,
                "started": _now() if earlier is None else earlier.started,
                "finished": finished,
                "left_out": self.left_out,
                "predictor": self.options.predictor,
                "versions": _versions(),
                "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "memory_gib": memory_gib()},
            },
        )

    @property
    def ordered(self) -> list[Row]:
        """Results so far, in the selection's order."""
        return sorted(self.rows.values(), key=lambda row: self._order.get(row["cell"], len(self._order)))


def _time_of(found: Estimate, limit: int | None) -> Row:
    if found.fits or found.memory_bytes is None or limit is None:
        return {"iteration_ms": found.iteration_s * 1e3}
    return {"failed": f"it needs {size(found.memory_bytes)}, and a GPU has {size(limit)}"}


def row_of(cell: SuiteCell, way: Way, measured: Mapping[str, Any]) -> Row:
    """A cell's row, without its speed-up.

    Args:
        measured: `iteration_ms` and what else is known, or `failed`.
    """
    iteration_ms = measured.get("iteration_ms")
    row: Row = {
        "cell": cell.name,
        "dataset": cell.dataset,
        "network": cell.network,
        "framework": cell.framework,
        "model": cell.model,
        "mechanism": cell.mechanism,
        "workers": cell.workers,
        "bandwidth": cell.bandwidth,
        "batch": cell.batch,
        "parameters": build(cell.model).elements,
        "way": way.value,
        "iteration_ms": iteration_ms,
        "epoch_s": None if iteration_ms is None else iteration_ms / 1e3 * cell.epoch_iterations,
        "images_per_s": None if iteration_ms is None else cell.images_per_iteration / iteration_ms * 1e3,
        "speedup": None,
        "peak_memory_bytes": None,
        "memory_bytes": None,
        "valid": iteration_ms is not None,
        "bottleneck": None,
        "dilation": None,
        "enough_dilation": None,
        "failed": None,
    }
    return {**row, **measured}


def with_speedups(rows: list[Row]) -> None:
    """Set each row's speed-up: epoch seconds of the same data set and network on one worker, over its own."""
    alone_s = {(row["dataset"], row["network"]): row["epoch_s"] for row in rows if row["workers"] == 1}
    for row in rows:
        one = alone_s.get((row["dataset"], row["network"]))
        row["speedup"] = None if one is None or row["epoch_s"] is None else one / row["epoch_s"]


def read_suite(folder: Path) -> SuiteRecord:
    """What a suite's directory holds.

    Raises:
        EmulationError: it is none, or broken.
    """
    path = folder / RECORD
    if not path.exists():
        raise EmulationError(f"{folder} has no {RECORD}: it is not the directory of a suite (netfold suite run)")
    return read_record(path, TypeAdapter(SuiteRecord), "what a suite was")


def read_rows(folder: Path) -> list[Row]:
    """A suite's results so far.

    Raises:
        EmulationError: they are broken.
    """
    path = folder / RESULTS
    if not path.exists():
        return []
    read_record(path, TypeAdapter(list[SuiteRow]), "a suite's results")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("netfold", "torch", "numpy"):
        with suppress(PackageNotFoundError):  # simulating needs no torch
            found[name] = version(name)
    return found


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
