"""Intervals of predicted times from measured ones: split conformal prediction.

Of each measured cell, the ratio of the measured to the predicted time is known. A new cell's ratio is, with the stated
probability, between two of their order statistics, if it is drawn as they were: nothing is assumed of how the ratios are
distributed. With n cells and coverage c, these are the k-th smallest and the k-th largest, k = floor((n + 1) (1 - c) / 2).

Source: Vovk, Gammerman and Shafer 2005, "Algorithmic Learning in a Random World", chapters 2 and 4 (cells in groups).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.strategies.strategy import choose
from hostlib.system.user_file import parse_json, read_text
from simulation.errors import SimulationError
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.predictors.predictor import Estimate

COVERAGE = 0.9
ALL = "all"
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """A cell that was predicted and measured.

    Attributes:
        mechanism: MECHANISM or STRATEGY/MECHANISM.
        ratio: of the measured to the predicted time.
    """

    mechanism: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Ratios:
    """The interval of measured over predicted times, from so many cells."""

    low: float
    high: float
    cells: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """How far measured times are from predicted ones.

    Attributes:
        coverage: share of new cells whose time is in its interval, on average.
        groups: by kind of mechanism (kind_of), and `all` for kinds with too few cells.
    """

    coverage: float
    groups: Mapping[str, Ratios]

    @classmethod
    def of(cls, cells: Iterable[MeasuredCell], coverage: float = COVERAGE, by_kind: bool = True) -> Calibration:
        """Calibrate.

        Args:
            by_kind: mechanisms of a kind have an interval of their own, where there are enough cells of it.

        Raises:
            SimulationError: there are too few cells for this coverage, or it is not between 0 and 1.
            HostlibError: a cell's mechanism does not exist.
        """
        if not 0 < coverage < 1:
            raise SimulationError(f"coverage must be between 0 and 1, not {coverage:g}")
        cells = list(cells)
        needed = cells_for(coverage)
        if len(cells) < needed:
            raise SimulationError(
                f"a coverage of {coverage:g} needs at least {needed} measured cells, not {len(cells)}"
            )
        groups = {ALL: _ratios([cell.ratio for cell in cells], coverage)}
        kinds: dict[str, list[float]] = {}
        for cell in cells if by_kind else ():
            kinds.setdefault(kind_of(cell.mechanism), []).append(cell.ratio)
        groups |= {kind: _ratios(of_kind, coverage) for kind, of_kind in kinds.items() if len(of_kind) >= needed}
        return cls(coverage, groups)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Read what as_json wrote. Raises SimulationError: it is none."""
        try:
            made = parse_json(text)
            groups = {
                name: Ratios(float(each["low"]), float(each["high"]), int(each["cells"]))
                for name, each in made["groups"].items()
            }
            found = cls(float(made["coverage"]), {ALL: groups[ALL], **groups})
            if not 0 < found.coverage < 1 or not all(0 < each.low <= each.high < inf for each in groups.values()):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SimulationError("not a calibration, which `netfold simulate calibrate --json` writes") from None
        return found

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a file.

        Raises:
            SimulationError: it is no calibration.
            HostlibError: it cannot be read.
        """
        try:
            return cls.from_json(read_text(path))
        except SimulationError as error:
            raise SimulationError(f"{path} is {error}") from None

    def as_json(self) -> dict[str, Any]:
        groups = {name: {"low": each.low, "high": each.high, "cells": each.cells} for name, each in self.groups.items()}
        return {"coverage": self.coverage, "groups": groups}

    def ratios(self, mechanism: str) -> Ratios:
        """The interval for a mechanism. Raises HostlibError: it does not exist."""
        return self.groups.get(kind_of(mechanism), self.groups[ALL])

    def apply(self, estimate: Estimate, plan: ParallelPlan) -> Estimate:
        """The estimate with this calibration's interval. Raises HostlibError: its mechanism does not exist."""
        low_s, high_s = self.interval(plan.name, estimate.iteration_s)
        return replace(estimate, low_s=low_s, high_s=high_s)

    def interval(self, mechanism: str, predicted: float) -> tuple[float, float]:
        """From where to where a mechanism's time is to be measured. Raises HostlibError: there is none of that name."""
        ratios = self.ratios(mechanism)
        return predicted * ratios.low, predicted * ratios.high


def cells_for(coverage: float) -> int:
    """Fewest cells from which intervals of a coverage follow: 19 for 0.9."""
    return ceil(round(2 / (1 - coverage), 9)) - 1


def _ratios(ratios: Sequence[float], coverage: float) -> Ratios:
    ordered = sorted(ratios)
    rank = floor(round((len(ordered) + 1) * (1 - coverage) / 2, 9))
    return Ratios(ordered[rank - 1], ordered[-rank], len(ordered))


def kind_of(mechanism: str) -> str:
    """What kind of mechanism sums: `pipeline`, `fabric`, `servers` or `hosts`.

    Raises:
        HostlibError: there is no such mechanism or strategy.
    """
    choice = choose(mechanism)
    if choice.strategy.plain in (schedule.value for schedule in PipelineSchedule):
        return "pipeline"
    if choice.mechanism.needs_fabric:
        return "fabric"
    return "servers" if choice.mechanism.servers else "hosts"


# ---- measured cells ------------------------------------------------------------------------------------------------


def measured_cells(paths: Iterable[Path]) -> list[MeasuredCell]:
    """Cells of experiments' folders, of their results.json, and of netfold's own recorded pages (docs/measurements).

    Cells that were not predicted, or whose measurement is not valid, are left out.

    Raises:
        SimulationError: a file is neither.
        HostlibError: a file cannot be read.
    """
    return [cell for path in paths for cell in _cells(path / RESULTS if path.is_dir() else path)]


def _cells(path: Path) -> list[MeasuredCell]:
    try:
        found = parse_json(read_text(path))
        cells = list(_of_page(found["records"]) if isinstance(found, dict) else _of_rows(found))
        if not all(isinstance(cell.mechanism, str) and 0 < cell.ratio < inf for cell in cells):
            raise ValueError
        return cells
    except (ValueError, ArithmeticError, TypeError, LookupError, AttributeError):
        raise SimulationError(f"{path} is neither an experiment's {RESULTS} nor a page of measurements") from None


def _of_rows(rows: Iterable[Mapping[str, Any]]) -> Iterable[MeasuredCell]:
    for row in rows:
        predicted, measured = row.get("simulated_ms"), row["iteration_ms"]
        if predicted and measured and row.get("valid", True):
            yield MeasuredCell(row["mechanism"], measured / predicted)


# Of a page's cell: "454 / 451 ms, -0.7 %" (measured, predicted), of the mechanism in its row; "454 (-0.7)", of that above.
BOTH = re.compile(r"([\d.]+) / ([\d.]+) ms, [+-][\d.]+ %")
WITH_ERROR = re.compile(r"[\d.]+ \(([+-][\d.]+)\)")


def _of_page(records: Iterable[Mapping[str, Any]]) -> Iterable[MeasuredCell]:
    for record in records:
        above = [_mechanism(each) for each in record["header"]]
        for row in record["rows"]:
            beside = _mechanism(row[0])
            for mechanism, text in zip(above, row, strict=False):
                if beside is not None and (both := BOTH.fullmatch(text)) is not None:
                    yield MeasuredCell(beside, float(both[1]) / float(both[2]))
                elif mechanism is not None and (error := WITH_ERROR.fullmatch(text)) is not None:
                    yield MeasuredCell(mechanism, 1 / (1 + float(error[1]) / 100))


def _mechanism(text: str) -> str | None:
    """The mechanism that a table's cell names, as code; None if it names none."""
    name = text.strip("`")
    if name == text:
        return None
    try:
        choose(name)
    except HostlibError:
        return None
    return name
