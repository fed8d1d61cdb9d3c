"""Plots of published tables and figures: simulated values, and the published ones as crosses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hostlib.system.plot_file import new_figure, save
from simulation.papers.cell import Cell

NUMBER = re.compile(r"\d[\d,.]*")
UNIT = re.compile(r" ?\(([^()]*)\)$")
Panels = dict[tuple[str, str], list[Cell]]


def draw(title: str, cells: Sequence[Cell], path: Path) -> None:
    """Draw a table: lines if its columns count something (workers, Gbit/s), bars otherwise.

    Raises:
        HostlibError: the file cannot be written.
    """
    lines = len({_number(cell) for cell in cells}) > 1 and all(_number(cell) is not None for cell in cells)
    panels: Panels = {}
    for cell in cells:
        key = (cell.row.rpartition(": ")[0], _counted(cell)) if lines else (cell.column, "")
        panels.setdefault(key, []).append(cell)
    across = min(len(panels), 4 if lines else 2)
    down = -(-len(panels) // across)
    rows = 3.2 * down if lines else sum(_height(panel) for panel in list(panels.values())[::across])
    figure = new_figure(max(6.0, 4.0 * across) if lines else 7.5 * across, rows + 0.6)
    figure.suptitle(title)
    grid = figure.subplots(down, across, squeeze=False)
    for axes, ((name, _), panel) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(name, fontsize="small")
        (_lines if lines else _bars)(axes, panel)
    for axes in list(grid.flat)[len(panels) :]:
        axes.axis("off")
    save(figure, path)


def _height(panel: Sequence[Cell]) -> float:
    return 1.0 + 0.22 * len(panel)


def _number(cell: Cell) -> float | None:
    found = NUMBER.search(cell.column)
    return float(found[0].replace(",", "")) if found else None


def _counted(cell: Cell) -> str:
    """What a column counts, and the cells' unit: "workers (s)" of "4 workers (s)"."""
    return " ".join(NUMBER.sub("", cell.column, count=1).split())


def _lines(axes: Any, panel: Sequence[Cell]) -> None:
    for row in dict.fromkeys(cell.row for cell in panel):
        mine = [cell for cell in panel if cell.row == row]
        (line,) = axes.plot(
            [_number(cell) for cell in mine],
            [cell.simulated for cell in mine],
            marker=".",
            label=row.rpartition(": ")[2],
        )
        printed = [(_number(cell), cell.published) for cell in mine if cell.published is not None]
        if printed:
            axes.plot(*zip(*printed, strict=True), "x", color=line.get_color(), markersize=9)
    counted = _counted(panel[0])
    unit = UNIT.search(counted)
    axes.set_xlabel(UNIT.sub("", counted), fontsize="small")
    axes.set_ylabel(unit[1] if unit else "", fontsize="small")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")


def _bars(axes: Any, panel: Sequence[Cell]) -> None:
    places = range(len(panel))
    axes.barh(places, [cell.simulated for cell in panel], height=0.6, color="C0", alpha=0.6, label="simulated")
    printed = [(cell.published, place) for place, cell in zip(places, panel, strict=True) if cell.published is not None]
    if printed:
        axes.plot(*zip(*printed, strict=True), "x", color="C3", label="published")
    values = [value for cell in panel for value in (cell.simulated, cell.published or cell.simulated)]
    if min(values) > 0 and max(values) > 100 * min(values):
        axes.set_xscale("log")
    axes.set_yticks(places, [cell.row for cell in panel], fontsize="x-small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize="x-small")
