"""Plots of numbers: iteration times, bytes per node, simulated against emulated times."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emulation.report import axis_units, palette
from emulation.report.canvas import Plot, figure, fill
from emulation.report.headline import setting_text
from emulation.report.palette import Look
from emulation.report.result_files import Cell, Setting
from emulation.report.summary import AXES, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Looks = Mapping[str, Look]
PAPER_AXES = ("bandwidth_bits_s", "workers")  # of the paper's figures: one is plotted for each value of the other
LOGARITHMIC = 10.0  # ratio of largest to smallest above which an axis of times is logarithmic
MANY_TICKS = 50.0  # ratio of an axis's ends above which only powers of ten are labelled
WIDTH = 4.6  # inches of every plot: its letters can still be read on a phone of 390 pixels
PANEL = (WIDTH, 3.0)  # without the legend below
ROW, BAR = 0.5, 0.42  # inches of a bar with its label above; a bar's share of that
LABEL_LETTERS, TITLE_LETTERS = 62, 46  # that fit the width
MOST_SPEEDUPS = 24
LEGEND_HANDLE, LEGEND_LETTER = 52.0, 5.0  # points: an entry's width without its name, and an average letter's
LEGEND_LINE = 0.19  # inches
FEW_NODES = 10  # nodes that can each be labelled on an axis


def file_name(*parts: str) -> str:
    """A plot's file name, of characters that file systems and links accept."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-")


# ---- iteration time along an axis ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """The labels of an axis of settings."""

    title: str
    short: str
    ticks: list[str]
    places: list[float]
    is_logarithmic: bool


def _axis(name: str, values: list[float]) -> _Axis:
    if name == "bandwidth_bits_s":
        scale, unit = axis_units.scale_of(min(values), axis_units.RATES)
        shown = [f"{value / scale:,.6g}" for value in values]
        return _Axis(f"bandwidth of a host's link ({unit})", "bandwidth", shown, [v / scale for v in values], True)
    if name == "loss":
        return _Axis("packets lost (%)", "loss", [f"{100 * v:g}" for v in values], list(range(len(values))), False)
    if name == "delay_ns":
        scale, unit = axis_units.scale_of(max(values), axis_units.DELAYS_NS)
        shown = [f"{value / scale:,.6g}" for value in values]
        return _Axis(
            f"delay of each link, one way ({unit})", "delay", shown, [v / scale for v in values], min(values) > 0
        )
    title = "slots of a pool" if name == "slots" else name
    return _Axis(title, name, [f"{value:g}" for value in values], list(values), name in ("workers", "slots"))


def times_along(summary: Summary, looks: Looks, model: str) -> Iterator[Plot]:
    """The paper's figures 3 to 8: a plot for each varied axis; for the paper's two axes, for each value of the other."""
    limits = _time_limits(summary, model)
    for axis in summary.varied(model):
        for fixed in _fixed(summary, model, axis):
            yield from _line_plot(summary, looks, model, axis, fixed, limits)


def _fixed(summary: Summary, model: str, axis: str) -> Iterator[dict[str, Any]]:
    """The values of the other axes, for each plot along one."""
    reference = summary.reference(model)
    at = {name: getattr(reference, name) for name in AXES if name != axis}
    others = [name for name in PAPER_AXES if name != axis] if axis in PAPER_AXES else []
    for values in itertools.product(*(summary.values(name, model) for name in others)):
        yield at | dict(zip(others, values, strict=True))


def _line_plot(
    summary: Summary, looks: Looks, model: str, axis: str, fixed: dict[str, Any], limits: tuple[float, float]
) -> Iterator[Plot]:
    cells = [
        cell
        for cell in summary.cells
        if cell.setting.model == model and all(getattr(cell.setting, n) == v for n, v in fixed.items())
    ]
    values = sorted({getattr(cell.setting, axis) for cell in cells if cell.iteration_ms is not None})
    if len(values) < 2:
        return
    what = _axis(axis, values)
    made = figure(PANEL[0], PANEL[1] + _legend_inches(PANEL[0], list(looks)))
    axes = made.add_subplot(xlabel=what.title)
    if what.is_logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(what.places, what.ticks)
    axes.minorticks_off()
    _time_axis(axes, limits)
    drawn: list[str] = []
    for mechanism, look in looks.items():
        mine = {getattr(c.setting, axis): c for c in cells if c.mechanism == mechanism and c.iteration_ms is not None}
        if not mine:
            continue
        drawn.append(mechanism)
        # The line is broken at values without a valid cell.
        valid, invalid = ([_time_of(mine.get(value), kind) for value in values] for kind in (True, False))
        axes.plot(what.places, valid, color=look.colour, marker=look.marker, linestyle=look.dash, label=mechanism)
        axes.plot(
            what.places,
            invalid,
            color=look.colour,
            marker=look.marker,
            linestyle="none",
            markerfacecolor="none",
            alpha=0.6,
        )
    where = _fixed_text(summary, fixed)
    axes.set_title(_title(f"{model}, {where}"))
    _legend_below(made, drawn)
    name = file_name("time", model, what.short, "at", where)
    yield Plot(
        name,
        f"{model}: iteration time against {what.short}, {where}."
        + ("" if all(cell.valid for cell in cells) else " Hollow marks: invalid cells, not to be compared."),
        f"Line chart of the iteration time of {model} against {what.short}, {where}, a line for each of "
        f"{axis_units.counted(len(drawn), 'mechanism')}; the numbers are in the ranking.",
        made,
    )


def _time_of(cell: Cell | None, valid: bool) -> float:
    """A cell's time if it is of this kind, else nan."""
    return math.nan if cell is None or cell.valid != valid or cell.iteration_ms is None else cell.iteration_ms


def _fixed_text(summary: Summary, fixed: dict[str, Any]) -> str:
    parts = []
    if "bandwidth_bits_s" in fixed:
        parts.append(axis_units.rate(fixed["bandwidth_bits_s"]))
    if "workers" in fixed:
        parts.append(axis_units.counted(fixed["workers"], "worker"))
    if "jobs" in fixed and (fixed["jobs"] > 1 or "jobs" in summary.varied()):
        parts.append(axis_units.counted(fixed["jobs"], "job"))
    if "loss" in fixed and (fixed["loss"] > 0 or "loss" in summary.varied()):
        parts.append(f"{axis_units.percent(fixed['loss'])} loss")
    if "slots" in fixed and "slots" in summary.varied():
        parts.append(axis_units.counted(fixed["slots"], "slot"))
    if fixed.get("delay_ns", 0) > 0:
        parts.append(f"{axis_units.delay(fixed['delay_ns'])} per link")
    return ", ".join(parts)


def _time_limits(summary: Summary, model: str) -> tuple[float, float]:
    """Common limits of a model's plots, so that they can be compared."""
    times = [c.iteration_ms for c in summary.cells if c.setting.model == model and c.iteration_ms]
    return (min(times), max(times)) if times else (1.0, 1.0)


def _time_axis(axes: Axes, limits: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = limits
    if high / low > LOGARITHMIC:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(LogLocator(subs=()))
        axes.set_ylabel("iteration time (ms, logarithmic)")
    else:
        axes.set_ylim(0, high * 1.08)
        axes.set_ylabel("iteration time (ms)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _legend_columns(inches: float, names: list[str]) -> int:
    """As many columns as the longest name allows, at most three."""
    return max(1, min(3, int(72 * inches / (LEGEND_HANDLE + LEGEND_LETTER * max(map(len, names))))))


def _legend_inches(width: float, names: list[str]) -> float:
    return LEGEND_LINE * -(-len(names) // _legend_columns(width, names))


def _legend_below(made: Figure, names: list[str]) -> None:
    if names:
        columns = _legend_columns(made.get_figwidth(), names)
        made.legend(loc="outside lower left", ncols=columns, handlelength=3.2, columnspacing=1.2)


# ---- bars ----------------------------------------------------------------------------------------------------------


def speedups(summary: Summary, looks: Looks) -> Plot | None:
    """The fabric's speed-up over the best host mechanism, a bar for each setting; None if there is none."""
    found = [(ranking, ranking.speedup) for ranking in summary.rankings if ranking.speedup is not None]
    if not found:
        return None
    left_out = len(found) - MOST_SPEEDUPS
    found = sorted(found, key=lambda each: -each[1])[:MOST_SPEEDUPS] if left_out > 0 else found
    made = figure(WIDTH, 0.75 + ROW * len(found))
    axes = made.add_subplot(xlabel="times as fast as the best host mechanism")
    largest = max(speedup for _, speedup in found)
    for place, (ranking, speedup) in enumerate(found):
        assert ranking.best_fabric is not None and ranking.best_host is not None
        axes.barh(place, speedup, BAR, color=looks[ranking.best_fabric.mechanism].colour)
        close = " (within spread)" if ranking.is_close else ""
        _beside(axes, place, speedup, f"{axis_units.times(speedup)}{close}", largest)
        what = f"{ranking.best_fabric.mechanism} over {ranking.best_host.mechanism}"
        _above(axes, place, f"{ranking.setting.model}, {setting_text(ranking.setting, summary)}: {what}")
    axes.axvline(1, color=palette.INK, linewidth=1, linestyle=":", zorder=1.5)
    _rows(axes, len(found), 1.25 * max(1.0, largest))
    return Plot(
        "speedup",
        "Speed-up of the best mechanism that uses the fabric over the best host mechanism. Left of the dotted line the fabric "
        "does not help." + (f" The {MOST_SPEEDUPS} largest of {len(found) + left_out}." if left_out > 0 else ""),
        f"Bar chart of the fabric's speed-up over the best host mechanism in {axis_units.counted(len(found), 'setting')}; the "
        "numbers are in the ranking.",
        made,
    )


def _above(axes: Axes, place: int, text: str) -> None:
    """A bar's label, above it: so it fits a narrow screen."""
    shown = textwrap.shorten(text, LABEL_LETTERS, placeholder=" ...")
    paper = {"facecolor": palette.PAPER, "edgecolor": "none", "pad": 0.6}  # hides the grid behind it
    axes.text(0, place - BAR / 2 - 0.06, shown, va="bottom", ha="left", fontsize=8.5, bbox=paper)


def _beside(axes: Axes, place: int, end: float, text: str, largest: float) -> None:
    axes.text(end + 0.015 * largest, place, text, va="center", fontsize=8.5)


def _rows(axes: Axes, count: int, right: float) -> None:
    axes.set_yticks([])
    axes.set_ylim(count - 1 + BAR / 2 + 0.15, -1 + BAR / 2 + 0.05)
    axes.set_xlim(0, right)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)


def times(summary: Summary, looks: Looks, setting: Setting) -> Plot:
    """Bars of the mechanisms under one setting, the fastest on top, with spread and simulated time; invalid ones last."""
    ranking = next(each for each in summary.rankings if each.setting == setting)
    cells = [row.cell for row in ranking.rows if row.cell.iteration_ms is not None]
    where = setting_text(setting, summary)
    made = figure(WIDTH, 1.1 + ROW * max(1, len(cells)))
    axes = made.add_subplot(xlabel="iteration time (ms)", title=_title(f"{setting.model}, {where}"))
    largest = max((c.iteration_ms or 0) + (c.spread_ms or 0) / 2 for c in cells) if cells else 1.0
    for place, cell in enumerate(cells):
        time, spread = cell.iteration_ms or 0.0, (cell.spread_ms or 0.0) / 2
        colour = looks[cell.mechanism].colour
        if cell.valid:
            axes.barh(place, time, BAR, color=colour)
        else:
            axes.barh(place, time, BAR, facecolor="none", edgecolor=colour, hatch="////", linewidth=1)
        axes.errorbar(time, place, xerr=spread, color=palette.INK, capsize=3, linewidth=1, linestyle="none")
        said = "" if cell.valid else ", invalid"
        _beside(axes, place, time + spread, f"{axis_units.three_digits(time)}{said}", largest)
        _above(axes, place, cell.mechanism)
    simulated = [(place, c.simulated_ms) for place, c in enumerate(cells) if c.simulated_ms is not None]
    if simulated:
        axes.plot([x for _, x in simulated], [y for y, _ in simulated], marker="D", markersize=5, linestyle="none",
                  color=palette.PAPER, markeredgecolor=palette.INK, label="simulated")  # fmt: skip
        made.legend(loc="outside lower right")
    _rows(axes, len(cells), 1.28 * max([largest, *(x for _, x in simulated if x)]))
    hatched = "" if all(cell.valid for cell in cells) else " Hatched: invalid, so not to be compared."
    return Plot(
        file_name("time", setting.model),
        f"{setting.model}: iteration time of each mechanism at {where}. Thin lines: the spread of the measurements. "
        f"Diamonds: what the simulation says.{hatched}",
        f"Bar chart of the iteration time of {setting.model} under each of {axis_units.counted(len(cells), 'mechanism')}, "
        f"{where}; the numbers are in the ranking.",
        made,
    )


def _title(text: str) -> str:
    return "\n".join(textwrap.wrap(text, TITLE_LETTERS))


def node_bytes(summary: Summary, looks: Looks, setting: Setting) -> Plot | None:
    """Poseidon's figure 10: what each node sends (up) and receives (down) in an iteration."""
    cells = {c.mechanism: c for c in summary.cells if c.setting == setting and c.traffic}
    cells = {mechanism: cells[mechanism] for mechanism in looks if mechanism in cells}
    if not cells:
        return None
    largest = max(max(t.sent_bytes, t.received_bytes) for c in cells.values() for t in c.traffic.values())
    scale, unit = axis_units.scale_of(largest, axis_units.SIZES)
    made = figure(WIDTH, 0.4 + 1.35 * len(cells))
    grid = made.subplots(len(cells), 1, squeeze=False, sharey=True)
    for (mechanism, cell), axes in zip(cells.items(), grid.flat, strict=True):
        _node_bars(axes, cell, looks[mechanism].colour, scale)
        axes.set_title(mechanism, fontsize=9)
    from matplotlib.ticker import FuncFormatter

    bound = 1.12 * largest / scale or 1.0
    grid[0][0].set_ylim(-bound, bound)
    # Down is a direction here, not a negative number.
    grid[0][0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):,.6g}"))
    made.supylabel(f"{unit} received (down) and sent (up)", fontsize=9.5)
    where = setting_text(setting, summary)
    return Plot(
        file_name("bytes", setting.model),
        f"{setting.model}: bytes per node and iteration, sent (up) and received (down, lighter), at {where}.",
        f"Bar charts of the bytes that each node sends and receives in one iteration of {setting.model}, one chart for "
        f"each of {axis_units.counted(len(cells), 'mechanism')}, {where}; means of workers are in the ranking.",
        made,
    )


def _node_bars(axes: Axes, cell: Cell, colour: str, scale: int) -> None:
    nodes = sorted(cell.traffic, key=node_order)
    width = 0.38 if len(nodes) <= 16 else 0.46
    sent = [(x - width, x + width, 0.0, cell.traffic[n].sent_bytes / scale) for x, n in enumerate(nodes)]
    received = [(x - width, x + width, -cell.traffic[n].received_bytes / scale, 0.0) for x, n in enumerate(nodes)]
    fill(axes, sent, colour)
    fill(axes, received, colour, 0.55)
    axes.axhline(0, color=palette.FAINT, linewidth=0.8)
    axes.set_xlim(-0.8, len(nodes) - 0.2)
    axes.grid(False, axis="x")
    axes.set_xticks(*node_ticks(nodes), fontsize=8)


def node_ticks(nodes: list[str]) -> tuple[list[float], list[str]]:
    """Positions and labels along an axis of nodes: each name or, of many, the first and last of each kind."""
    if len(nodes) <= FEW_NODES:
        return list(range(len(nodes))), [_short(node) for node in nodes]
    places, names = [], []
    for _, group in itertools.groupby(range(len(nodes)), lambda place: node_order(nodes[place])[1]):
        first, *_, last = [*(mine := list(group)), mine[-1]]
        places.append((first + last) / 2)
        names.append(_short(nodes[first]) if first == last else f"{_short(nodes[first])} to {_short(nodes[last])}")
    return places, names


def node_order(node: str) -> tuple[int, str, int]:
    """Workers first, then servers; each by number."""
    found = re.fullmatch(r"(.*?)([0-9]*)", node)
    assert found is not None
    return (0 if found[1] == "worker" else 1, found[1], int(found[2] or 0))


def _short(node: str) -> str:
    """`w3`, `s0`; other names unchanged."""
    return re.sub(r"^(w)orker(?=[0-9])|^(s)erver(?=[0-9])", lambda found: found[1] or found[2], node)


# ---- simulated beside emulated -------------------------------------------------------------------------------------


def simulated(summary: Summary, looks: Looks) -> Plot | None:
    """A point for each cell; on the diagonal both agree."""
    if summary.deviations is None:
        return None
    made = figure(WIDTH, WIDTH + _legend_inches(WIDTH, list(looks)))
    axes = made.add_subplot(xlabel="emulated iteration time (ms)", ylabel="simulated iteration time (ms)")
    drawn: list[str] = []
    everything: list[float] = []
    for mechanism, look in looks.items():
        off = summary.deviations_of(mechanism)
        if off is None:
            continue
        drawn.append(mechanism)
        x = [each.cell.iteration_ms or 0 for each in off.cells]
        y = [each.cell.simulated_ms or 0 for each in off.cells]
        everything += x + y
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle="none", label=mechanism, alpha=0.85)
    low, high = min(everything) / 1.15, max(everything) * 1.15
    axes.plot([low, high], [low, high], color=palette.FAINT, linewidth=1, zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    from matplotlib.ticker import FuncFormatter, LogLocator

    for each in (axes.xaxis, axes.yaxis):
        each.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < MANY_TICKS else (1.0,)))
        each.set_minor_locator(LogLocator(subs=()))
        each.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    _legend_below(made, drawn)
    return Plot(
        "simulated",
        "Simulated against emulated iteration time, a point for each valid cell; on the line both agree.",
        f"Scatter plot of the simulated against the emulated iteration time of {len(summary.deviations.cells)} cells, "
        "with the line on which both agree; the numbers are in the table.",
        made,
    )
