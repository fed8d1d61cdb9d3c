"""Who computes and who communicates when, in one measured iteration under each mechanism."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from emulation.page import palette, units
from emulation.page.answer import setting_text
from emulation.page.canvas import Box, Plot, figure, fill
from emulation.page.plots import Looks, file_name, node_order, short_node
from emulation.page.record import Setting, Span, Timeline
from emulation.page.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INVISIBLE = 1 / 2000  # of the axis: gaps that no screen shows
TALL, LOW = 0.16, 0.062  # inches of a node's row: few nodes, and many
FEW_NODES = 10


def timelines(summary: Summary, looks: Looks, setting: Setting) -> Plot | None:
    """A panel for each mechanism under a setting, all over the same time; a row for each node."""
    cells = {c.mechanism: c.name for c in summary.cells if c.setting == setting}
    known = summary.experiment.timelines
    shown = {m: known[cells[m]] for m in looks if m in cells and known.get(cells[m])}
    if not shown:
        return None
    end_ms = max((span.end_ms for each in shown.values() for spans in each.values() for span in spans), default=0.0)
    rows = max(len(timeline) for timeline in shown.values())
    row = TALL if rows <= FEW_NODES else LOW
    heights = [row * len(timeline) for timeline in shown.values()]
    made = figure(9.2, 1.0 + sum(heights) + 0.34 * len(shown))
    grid = made.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for axes, (mechanism, timeline) in zip(grid, shown.items(), strict=True):
        _panel(axes, timeline, looks[mechanism].colour, end_ms or 1.0)
        axes.set_title(mechanism, fontsize=9)
    grid[-1].set_xlabel("time since the iteration began (ms)")
    _legend(made, looks[next(iter(shown))].colour)
    where = setting_text(setting, summary)
    return Plot(
        file_name("timeline", setting.model),
        f"{setting.model}: one measured iteration at {where}, a row for each node: above, computing (forward light, "
        "backward dark); below, in the mechanism's colour, communication.",
        f"Timelines of computing and communication of each node in one iteration of {setting.model}, one for each of "
        f"{units.counted(len(shown), 'mechanism')}, {where}; the spans are in the traces.",
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
    every = 1 if len(nodes) <= FEW_NODES else 8
    marked = [n for i, n in enumerate(nodes) if i % every == 0 or not n.startswith("worker")]
    axes.set_yticks([-nodes.index(node) for node in marked], [short_node(node) for node in marked], fontsize=7.5)
    axes.grid(False, axis="y")


def merged(spans: Iterable[Span], gap_ms: float) -> list[tuple[float, float]]:
    """Start and end of what spans cover together; gaps of up to `gap_ms` count as covered."""
    covered: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda each: each.start_ms):
        if covered and span.start_ms <= covered[-1][1] + gap_ms:
            covered[-1] = (covered[-1][0], max(covered[-1][1], span.end_ms))
        else:
            covered.append((span.start_ms, span.end_ms))
    return covered


def _legend(made: object, colour: str) -> None:
    from matplotlib.patches import Patch

    entries = (
        ("forward", palette.FORWARD),
        ("backward", palette.BACKWARD),
        ("communication, in the mechanism's colour", colour),
    )
    handles = [Patch(color=of, label=label) for label, of in entries]
    made.legend(handles=handles, loc="outside lower left", ncols=3)  # type: ignore[attr-defined]
