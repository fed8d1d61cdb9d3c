"""Timelines of computing and communication in one measured iteration under each mechanism."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from emulation.report import axis_units, palette
from emulation.report.canvas import Box, Plot, figure, fill
from emulation.report.headline import setting_text
from emulation.report.plots import FEW_NODES, WIDTH, Looks, file_name, node_order, node_ticks
from emulation.report.result_files import Setting, Span, Timeline
from emulation.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INVISIBLE = 1 / 2000  # share of the axis: gaps too small for any screen
TALL, LOW = 0.16, 0.062  # height of a node's row in inches: with few nodes, and with many
COMPARABLE = 4.0  # ratio of the longest to the shortest iteration that fit on one axis


def timelines(summary: Summary, looks: Looks, setting: Setting) -> Plot | None:
    """A panel for each mechanism under a setting, with a common time axis; a row for each node."""
    cells = {c.mechanism: c.name for c in summary.cells if c.setting == setting}
    known = summary.experiment.timelines
    shown = {m: known[cells[m]] for m in looks if m in cells and known.get(cells[m])}
    if not shown:
        return None
    ends = {m: max((s.end_ms for spans in t.values() for s in spans), default=0.0) or 1.0 for m, t in shown.items()}
    is_shared = max(ends.values()) <= COMPARABLE * min(ends.values())
    row = TALL if max(map(len, shown.values())) <= FEW_NODES else LOW
    heights = [row * len(timeline) for timeline in shown.values()]
    made = figure(WIDTH, 1.0 + sum(heights) + (0.34 if is_shared else 0.56) * len(shown))
    grid = made.subplots(len(shown), 1, squeeze=False, sharex=is_shared, height_ratios=heights)[:, 0]
    for axes, (mechanism, timeline) in zip(grid, shown.items(), strict=True):
        _panel(axes, timeline, looks[mechanism].colour, max(ends.values()) if is_shared else ends[mechanism])
        axes.set_title(f"{mechanism}: {axis_units.milliseconds(ends[mechanism])}", fontsize=9)
    grid[-1].set_xlabel("time since the iteration began (ms)")
    _legend(made, looks[next(iter(shown))].colour)
    where = setting_text(setting, summary)
    return Plot(
        file_name("timeline", setting.model),
        f"{setting.model}: one measured iteration at {where}, a row for each node: above, computing (forward light, "
        "backward dark); below, in the mechanism's colour, communication. "
        + ("All over the same time." if is_shared else "Each over a time of its own."),
        f"Timelines of computing and communication of each node in one iteration of {setting.model}, one for each of "
        f"{axis_units.counted(len(shown), 'mechanism')}, {where}; the spans are in the traces.",
        made,
    )


def _panel(axes: Axes, timeline: Timeline, colour: str, end_ms: float) -> None:
    nodes = sorted(timeline, key=node_order)
    for kind, bottom, top, of in (
        ("forward", 0.02, 0.42, palette.FORWARD),
        ("backward", 0.02, 0.42, palette.BACKWARD),
        ("communication", -0.42, -0.02, colour),
    ):
        boxes: list[Box] = []
        for place, node in enumerate(nodes):
            spans = (span for span in timeline[node] if span.kind == kind)
            boxes += [(s, e, -place + bottom, -place + top) for s, e in merged(spans, INVISIBLE * end_ms)]
        fill(axes, boxes, of)
    axes.set_xlim(0, 1.01 * end_ms)
    axes.set_ylim(0.6 - len(nodes), 0.6)
    places, names = node_ticks(nodes)
    axes.set_yticks([-place for place in places], names, fontsize=7.5)
    axes.grid(False, axis="y")


def merged(spans: Iterable[Span], gap_ms: float) -> list[tuple[float, float]]:
    """Start and end of the union of spans; gaps of up to `gap_ms` count as covered."""
    covered: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda each: each.start_ms):
        if covered and span.start_ms <= covered[-1][1] + gap_ms:
            covered[-1] = (covered[-1][0], max(covered[-1][1], span.end_ms))
        else:
            covered.append((span.start_ms, span.end_ms))
    return covered


def _legend(made: Figure, colour: str) -> None:
    from matplotlib.patches import Patch

    entries = (
        ("forward", palette.FORWARD),
        ("backward", palette.BACKWARD),
        ("communication", colour),
    )
    handles = [Patch(color=of, label=label) for label, of in entries]
    made.legend(handles=handles, loc="outside lower left", ncols=3)
