"""Compute the report's statements: the fastest mechanism under each setting, by how much, and the simulation's error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from emulation.report.result_files import Cell, Experiment, Setting

AXES = ("bandwidth_bits_s", "workers", "jobs", "loss", "slots", "delay_ns")  # of a setting, except for the model


@dataclass(frozen=True, slots=True)
class RankedCell:
    """A mechanism's place under a setting.

    Attributes:
        place: from 1; None if the cell is invalid.
        speedup: over the best host mechanism; None if either is invalid.
    """

    cell: Cell
    place: int | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The mechanisms under one setting, the fastest first, invalid ones last.

    Attributes:
        best_host, best_fabric: the fastest valid ones without the fabric, and with it.
        unknown_hosts: the experiment's host mechanisms without a valid cell here, one of which might be the best.
    """

    setting: Setting
    rows: tuple[RankedCell, ...]
    best_host: Cell | None
    best_fabric: Cell | None
    unknown_hosts: tuple[str, ...]

    @property
    def best(self) -> Cell | None:
        return self.rows[0].cell if self.rows[0].place else None

    @property
    def speedup(self) -> float | None:
        """Speed-up of the best mechanism with the fabric over the best one without."""
        if self.best_host is None or self.best_fabric is None:
            return None
        return _time(self.best_host) / _time(self.best_fabric)

    @property
    def is_close(self) -> bool:
        """Whether the two best differ by less than the spread of their measurements."""
        if self.best_host is None or self.best_fabric is None:
            return False
        apart = abs(_time(self.best_host) - _time(self.best_fabric))
        return apart < max(self.best_host.spread_ms or 0, self.best_fabric.spread_ms or 0)


@dataclass(frozen=True, slots=True)
class Deviation:
    """Relative error of the simulation: positive if it takes longer than the emulation."""

    cell: Cell
    error: float


@dataclass(frozen=True, slots=True)
class Deviations:
    """Deviations of some cells, summarised by magnitude."""

    cells: tuple[Deviation, ...]

    @property
    def median(self) -> float:
        return median(abs(each.error) for each in self.cells)

    @property
    def worst(self) -> Deviation:
        return max(self.cells, key=lambda each: abs(each.error))


@dataclass(frozen=True)
class Summary:
    """The evaluated results of an experiment."""

    experiment: Experiment

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.experiment.cells

    @cached_property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.setting.model for cell in self.cells))

    @cached_property
    def mechanisms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.mechanism for cell in self.cells))

    @cached_property
    def invalid(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if not cell.valid)

    @property
    def enough_dilation(self) -> float | None:
        """The dilation that would make all invalid cells valid that a dilation can."""
        return max((cell.enough_dilation for cell in self.invalid if cell.enough_dilation), default=None)

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """In order of models, then by workers, bandwidth, jobs, loss, slots and delay."""
        settings = sorted({cell.setting for cell in self.cells}, key=self._order)
        hosts = tuple(dict.fromkeys(cell.mechanism for cell in self.cells if not cell.needs_fabric))
        return tuple(_rank(setting, [c for c in self.cells if c.setting == setting], hosts) for setting in settings)

    def of(self, model: str) -> tuple[Ranking, ...]:
        return tuple(ranking for ranking in self.rankings if ranking.setting.model == model)

    def values(self, axis: str, model: str | None = None) -> list[Any]:
        """The values of a varied axis."""
        settings = (cell.setting for cell in self.cells)
        return sorted({getattr(s, axis) for s in settings if model in (None, s.model)})

    def varied(self, model: str | None = None) -> tuple[str, ...]:
        return tuple(axis for axis in AXES if len(self.values(axis, model)) > 1)

    def reference(self, model: str) -> Setting:
        """The setting for detailed plots: most valid cells, no loss, few jobs, most workers, middle bandwidth."""
        rates = self.values("bandwidth_bits_s", model)
        middle = rates[len(rates) // 2]

        def order(ranking: Ranking) -> tuple[float, ...]:
            s = ranking.setting
            valid = sum(row.place is not None for row in ranking.rows)
            return (-valid, s.loss, s.jobs, -s.workers, abs(s.bandwidth_bits_s - middle))

        return min(self.of(model), key=order).setting

    @cached_property
    def combinations(self) -> int:
        """Number of cells in a full grid of the models, mechanisms and settings that occur."""
        count = len(self.models) * len(self.mechanisms)
        for axis in AXES:
            count *= len(self.values(axis))
        return count

    @cached_property
    def deviations(self) -> Deviations | None:
        """Deviations of the valid cells that were simulated."""
        return _deviations(self.cells)

    def deviations_of(self, mechanism: str) -> Deviations | None:
        return _deviations(cell for cell in self.cells if cell.mechanism == mechanism)

    def _order(self, setting: Setting) -> tuple[Any, ...]:
        s = setting
        return (self.models.index(s.model), s.workers, s.bandwidth_bits_s, s.jobs, s.loss, s.slots, s.delay_ns)

    def as_json(self) -> dict[str, Any]:
        off = self.deviations
        return {
            "experiment": self.experiment.title,
            "finished": self.experiment.finished,
            "cells": {
                "measured": len(self.cells),
                "valid": len(self.cells) - len(self.invalid),
                "invalid": len(self.invalid),
                "combinations": self.combinations,
            },
            "rankings": [_ranking_json(ranking) for ranking in self.rankings],
            "simulation": None
            if off is None
            else {
                "median_error": off.median,
                "maximum_error": abs(off.worst.error),
                "cells": {each.cell.name: each.error for each in off.cells},
            },
            "invalid": {cell.name: cell.bottleneck for cell in self.invalid},
            "enough_dilation": {cell.name: cell.enough_dilation for cell in self.invalid if cell.enough_dilation},
        }


def _rank(setting: Setting, cells: list[Cell], hosts: tuple[str, ...]) -> Ranking:
    valid = sorted((cell for cell in cells if cell.valid), key=_time)
    best_host = next((cell for cell in valid if not cell.needs_fabric), None)
    best_fabric = next((cell for cell in valid if cell.needs_fabric), None)
    rows = [RankedCell(c, n, _time(best_host) / _time(c) if best_host else None) for n, c in enumerate(valid, start=1)]
    rows += [RankedCell(cell, None, None) for cell in cells if not cell.valid]
    unknown = tuple(name for name in hosts if name not in {cell.mechanism for cell in valid})
    return Ranking(setting, tuple(rows), best_host, best_fabric, unknown)


def _time(cell: Cell) -> float:
    assert cell.iteration_ms is not None  # the reader has checked valid cells
    return cell.iteration_ms


def _deviations(cells: Iterable[Cell]) -> Deviations | None:
    found = tuple(
        Deviation(cell, (cell.simulated_ms - _time(cell)) / _time(cell))
        for cell in cells
        if cell.valid and cell.simulated_ms is not None
    )
    return Deviations(found) if found else None


def _ranking_json(ranking: Ranking) -> dict[str, Any]:
    s = ranking.setting
    best = {"best": ranking.best, "best_host": ranking.best_host, "best_fabric": ranking.best_fabric}
    return {
        "model": s.model,
        "workers": s.workers,
        "bandwidth_bits_s": s.bandwidth_bits_s,
        "jobs": s.jobs,
        "loss": s.loss,
        "slots": s.slots,
        "delay_ns": s.delay_ns,
        **{name: cell and cell.mechanism for name, cell in best.items()},
        "speedup": ranking.speedup,
        "within_spread": ranking.is_close,
        "unknown_hosts": list(ranking.unknown_hosts),
        "mechanisms": [
            {
                "cell": row.cell.name,
                "mechanism": row.cell.mechanism,
                "place": row.place,
                "iteration_ms": row.cell.iteration_ms,
                "iteration_ms_spread": row.cell.spread_ms,
                "speedup": row.speedup,
                "valid": row.cell.valid,
            }
            for row in ranking.rows
        ],
    }
