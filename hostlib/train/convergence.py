"""Plot the training losses of several runs. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hostlib.system.plot_file import new_figure, require_drawable, save

WINDOW = 20  # each point of a curve is the mean of this many steps, because one batch's loss is noisy


@dataclass(frozen=True, slots=True)
class Curve:
    """One run's losses.

    Attributes:
        losses: rank 0's, after each step.
        test_error: share of wrong test labels at the end, 0 to 1.
    """

    mechanism: str
    losses: list[float]
    test_error: float


def smoothed(losses: Sequence[float]) -> list[float]:
    """The mean of each step and those before it, at most WINDOW."""
    windows = (losses[max(0, end - WINDOW) : end] for end in range(1, len(losses) + 1))
    return [sum(window) / len(window) for window in windows]


def draw(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Plot the curves to a file.

    Raises:
        HostlibError: see hostlib.system.plot_file.
    """
    require_drawable(path)
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    for curve in curves:
        label = f"{curve.mechanism}, test error {100 * curve.test_error:.1f} %"
        axes.plot(range(1, len(curve.losses) + 1), smoothed(curve.losses), label=label)
    axes.set(xlabel="step", ylabel=f"training loss, mean of {WINDOW} steps", yscale="log", title=title)
    axes.legend()
    save(figure, path)
