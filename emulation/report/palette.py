"""Colours of mechanisms: each has its own in all plots, and can also be told by marker and line style.

The hues are Okabe and Ito's and Paul Tol's "muted" and "bright" ones, which readers with any colour vision can
distinguish; each has a lighter form for a dark background. Solid lines use the fabric, dashed ones hosts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

# Replaced by the page's style sheet; unchanged, they make files for white paper.
INK, FAINT, GRID, PAPER = "#1b1f24", "#59616b", "#d5d9df", "#fefeff"
FORWARD, BACKWARD = "#8fa0b3", "#5d6f84"

DARK_FORMS = {
    INK: "#e8eaed",
    FAINT: "#a7b0bb",
    GRID: "#3a414a",
    PAPER: "#15181c",
    FORWARD: "#76879a",
    BACKWARD: "#a9b8c9",
    "#d55e00": "#ff8f4a",
    "#b87700": "#ffc247",
    "#b8569a": "#ec94cc",
    "#882255": "#e0719f",
    "#0072b2": "#4aa8e6",
    "#2a8fc9": "#8ed3f7",
    "#00876a": "#35c9a0",
    "#117733": "#6cc06f",
    "#5b5b5b": "#c4c4c4",
    "#8a8a1f": "#cfcf5c",
    "#332288": "#9b8cf0",
    "#7a4a21": "#c9976b",
    "#cc3344": "#ff8087",
}
HUES = {
    "inagg+mcast": "#d55e00",
    "inagg": "#b87700",
    "mcast": "#b8569a",
    "ring+mcast": "#882255",
    "ring": "#0072b2",
    "butterfly": "#2a8fc9",
    "halving-doubling": "#00876a",
    "tree": "#117733",
    "ps": "#5b5b5b",
    "gloo": "#8a8a1f",
    "nccl": "#332288",
    "mpi": "#7a4a21",
}
MARKERS = "osD^vP*Xhpd<>"
SPARE = "#cc3344"


@dataclass(frozen=True, slots=True)
class Look:
    """How a mechanism is drawn."""

    colour: str
    marker: str
    dash: str


def looks(mechanisms: dict[str, bool]) -> dict[str, Look]:
    """The look of each mechanism; one with options has the plain one's colour if that is not used, else a free one.

    Args:
        mechanisms: whether each needs the fabric.
    """
    taken = {name: HUES[name] for name in mechanisms if name in HUES}
    for name in mechanisms:
        hue = HUES.get(name.partition(":")[0])
        if hue is not None and hue not in taken.values():
            taken.setdefault(name, hue)
    free = [hue for hue in [*HUES.values(), SPARE] if hue not in taken.values()] or [SPARE]
    others = [name for name in mechanisms if name not in taken]
    # With more mechanisms than hues, hues repeat, and only markers differ.
    taken |= {name: free[index % len(free)] for index, name in enumerate(others)}
    return {
        name: Look(taken[name], MARKERS[index % len(MARKERS)], "-" if fabric else "--")
        for index, (name, fabric) in enumerate(mechanisms.items())
    }
