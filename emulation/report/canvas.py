"""Create figures, write them as SVG and PNG, and embed them in the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from emulation.errors import EmulationError
from emulation.report import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, right, bottom, top
PNG_DPI = 160
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "netfold",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": palette.INK,
    "axes.labelcolor": palette.INK,
    "axes.facecolor": "none",
    "axes.edgecolor": palette.FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "grid.color": palette.GRID,
    "grid.linewidth": 0.7,
    "xtick.color": palette.FAINT,
    "ytick.color": palette.FAINT,
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "axes.formatter.useoffset": False,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure and its texts.

    Attributes:
        name: of its files, without the ending.
        alternative: text for readers who cannot see it.
    """

    name: str
    caption: str
    alternative: str
    figure: Figure


def require_libraries() -> None:
    """Check the libraries for reports. Raises EmulationError: one is missing."""
    try:
        import jinja2
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise EmulationError(f"a report needs {error.name}: pip install 'netfold[emulation]'") from None
    del jinja2


def style() -> Any:
    """A context with the style of all figures."""
    from matplotlib import rc_context

    return rc_context(cast(Any, STYLE))


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained", facecolor=palette.PAPER)
    FigureCanvasAgg(made)
    return made


def fill(axes: Axes, boxes: Iterable[Box], colour: str, alpha: float = 1.0) -> None:
    """Draw boxes of one colour as one path, which keeps SVG files with thousands of boxes small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    corners: list[tuple[float, float]] = []
    for left, right, bottom, top in boxes:
        corners += [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
    if not corners:
        return
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY] * (len(corners) // 5)
    axes.add_patch(PathPatch(Outline(corners, codes), facecolor=colour, alpha=alpha, linewidth=0))


def write(plot: Plot, folder: Path) -> str:
    """NAME.svg and NAME.png, for white paper; returns the SVG."""
    drawn = io.StringIO()
    plot.figure.savefig(drawn, format="svg", metadata={"Date": None, "Title": plot.alternative})
    (folder / f"{plot.name}.svg").write_text(drawn.getvalue(), encoding="utf-8")
    plot.figure.savefig(folder / f"{plot.name}.png", dpi=PNG_DPI)
    return drawn.getvalue()


def inline(plot: Plot, svg: str) -> str:
    """The SVG for embedding: colours come from the style sheet, ids are unique, and nothing refers to other files."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<(metadata|title)>.*?</\1>", "", body, flags=re.S)
    body = re.sub(r'\bid="', f'id="{plot.name}-', body)
    body = re.sub(r'(xlink:href="|url\()#', rf"\1#{plot.name}-", body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: variable(found[0]), body)
    opening = re.match(r"<svg[^>]*>", body)
    assert opening is not None
    box = re.search(r'viewBox="[^"]*"', opening[0])
    width = re.search(r'width="([0-9.]+)pt"', opening[0])
    assert box is not None and width is not None
    label = escape(plot.alternative)
    begin = f'<svg {box[0]} role="img" aria-label="{label}" style="max-width: {float(width[1]) * 4 / 3:.0f}px">'
    return begin + body[opening.end() :]


def variable(colour: str) -> str:
    """The style sheet's name of a colour; other colours unchanged."""
    return f"var(--c{colour[1:]})" if colour in palette.DARK_FORMS else colour
