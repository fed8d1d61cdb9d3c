"""Plot files: checked before the work whose results they show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostlib.errors import HostlibError
from hostlib.system.user_file import is_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".pdf", ".png", ".svg")


def require_drawable(path: Path | None) -> None:
    """Check that a plot can be written to a path; None is accepted.

    Raises:
        HostlibError: the file's ending is unknown, its folder does not exist, or matplotlib is missing.
    """
    if path is None:
        return
    if path.suffix not in ENDINGS:
        raise HostlibError(f"{path.name} cannot be drawn; legal endings are {', '.join(ENDINGS)}")
    if not is_writable(path):
        raise HostlibError(f"cannot write {path}: it is a folder, or its folder does not exist or is not writable")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise HostlibError("drawing to a file needs matplotlib: pip install 'netfold[plot]'") from None


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Save a figure; the same figure gives the same bytes.

    Raises:
        HostlibError: the file cannot be written.
    """
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise HostlibError(f"cannot write {path}: {error.strerror}") from error
