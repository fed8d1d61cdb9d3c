"""Curves of training runs: what is drawn of them, and what the command refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hostlib.cli import main
from hostlib.errors import HostlibError
from hostlib.train.convergence import WINDOW, Curve, draw, smoothed


def test_points_are_means_of_the_steps_before() -> None:
    assert smoothed([4.0, 2.0]) == [4.0, 3.0]
    assert smoothed([100.0] + [1.0] * WINDOW)[-1] == 1.0


def test_every_curve_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    draw([Curve("ring", [2.0, 1.0], 0.25), Curve("onebit/ring", [2.0, 1.5], 0.5)], "lenet, 4 workers", path)
    drawn = path.read_text()
    assert "ring, test error 25.0 %" in drawn and "onebit/ring, test error 50.0 %" in drawn


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostlibError, match=r"curves.gif cannot be drawn; legal endings are .pdf, .png, .svg"):
        draw([], "", tmp_path / "curves.gif")
    with pytest.raises(HostlibError, match="its folder does not exist or is not writable"):
        draw([Curve("ring", [1.0], 0.0)], "", tmp_path / "none" / "curves.svg")


def test_an_unknown_mechanism_is_refused_before_anything_runs() -> None:
    done = CliRunner().invoke(main, ["converge", "ring", "rang"])
    assert isinstance(done.exception, HostlibError)
    assert "unknown mechanism 'rang'" in str(done.exception)
