"""Sweeps: all points, once; plotted; on a cluster by the same command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hostlib.errors import HostlibError
from hostlib.traces.trace import write
from simulation.cli import main
from simulation.errors import SimulationError
from simulation.experiments.parameter_sweep import Grid
from simulation.models.synthetic_trace import model_trace

SMALL = ("--model", "lenet,alexnet", "--mechanism", "ring,ps", "--workers", "2,4", "--bandwidth", "10gbit")


def sweep(*words: str) -> list[dict]:
    done = CliRunner().invoke(main, ["sweep", *SMALL, *words, "--json"], catch_exceptions=False, standalone_mode=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_every_point_is_played_once_and_not_again(tmp_path: Path) -> None:
    output = tmp_path / "results"
    rows = sweep("--output", str(output), "--processes", "2")
    assert [(r["model"], r["mechanism"], r["workers"]) for r in rows] == [
        (m, c, w) for m in ("lenet", "alexnet") for c in ("ring", "ps") for w in (2, 4)
    ]
    assert all(r["iteration_s"] > 0 and r["events"] > 0 and r["memory_mb"] > 10 for r in rows)
    # Half of it lost: only that is played again, and the wall times of the rest are those of the first time.
    output.write_text("".join(output.read_text().splitlines(keepends=True)[:4]))
    kept = {json.loads(line)["wall_s"] for line in output.read_text().splitlines()}
    again = sweep("--output", str(output), "--processes", "2")
    assert len(output.read_text().splitlines()) == 8
    assert len(kept & {r["wall_s"] for r in again}) == 4
    assert [r["iteration_s"] for r in again] == [r["iteration_s"] for r in rows]


def test_a_point_that_cannot_be_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "results"
    with pytest.raises(
        SimulationError, match=r"^lenet, inagg\+mcast:racks=9, 10gbit, 2 workers: .*racks must be in 1..2"
    ):
        sweep("--mechanism", "ring,inagg+mcast:racks=9", "--output", str(output), "--processes", "1")
    assert len(output.read_text().splitlines()) >= 1


def test_results_of_something_else_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "results"
    output.write_text('{"some": "thing"}\n')
    with pytest.raises(SimulationError, match=r"results, line 1, key: is not a result of a sweep"):
        sweep("--output", str(output))


def test_an_output_that_cannot_be_is_named_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"cannot be read as a sweep's results: .*Is a directory"):
        sweep("--output", str(tmp_path))
    # There is no such mechanism either, which is only seen when it is played.
    with pytest.raises(SimulationError, match="nowhere/results cannot be written: No such file or directory"):
        sweep("--output", str(tmp_path / "nowhere" / "results"), "--mechanism", "inagg+mcast:racks=9")


def test_results_are_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an extra: pip install 'netfold[plot]'")
    results = tmp_path / "results"
    sweep("--output", str(results), "--plot", str(tmp_path / "time.svg"))
    sweep("--output", str(results), "--plot", str(tmp_path / "wall.png"), "--plot-value", "wall_s")
    assert "alexnet ps 10gbit" in (tmp_path / "time.svg").read_text().replace("&#160;", " ")
    assert (tmp_path / "wall.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SimulationError, match="unknown measure 'speed' to plot; legal are"):
        sweep("--output", str(results), "--plot", str(tmp_path / "x.png"), "--plot-value", "speed")


def test_a_plot_is_tried_before_anything_is_played(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with pytest.raises(HostlibError, match=r"x.foo cannot be drawn; legal endings are .pdf, .png, .svg"):
        sweep("--output", str(results), "--plot", str(tmp_path / "x.foo"))
    with pytest.raises(HostlibError, match="its folder does not exist"):
        sweep("--output", str(results), "--plot", str(tmp_path / "nowhere" / "x.png"))
    assert not results.exists()


@pytest.mark.parametrize(
    ("models", "workers", "says"),
    [([], ["2"], "--model is empty"), (["lenet"], ["two"], "not 'two'"), (["lenet"], ["0"], "'0'")],
)
def test_what_is_no_grid_is_refused(models: list[str], workers: list[str], says: str) -> None:
    with pytest.raises(SimulationError, match=says):
        Grid(models, ["ring"], ["1gbit"], workers, {}).points()


def test_everything_is_tried_before_the_first_point_is_played(tmp_path: Path) -> None:
    output = tmp_path / "results"
    trace = tmp_path / "lenet.trace"
    write(model_trace("lenet"), trace)
    bare = tmp_path / "bare.trace"
    write(replace(model_trace("lenet"), batch=None), bare)
    for wrong, says in (
        (("--model", "lenet,nope"), "unknown model 'nope'"),
        (("--mechanism", "ring,nope"), "unknown mechanism 'nope'"),
        (("--bandwidth", "10gbit,fast"), "'fast' is not a number"),
        (("--oversubscription", "2"), "--oversubscription is of racks' uplinks"),
        (("--model", f"lenet,{trace}", "--forward", "3ms"), "--forward: a trace has its own times"),
        (("--model", f"lenet,{bare}", "--tflops", "3"), "--tflops: .*bare.trace does not say its FLOPs and batch"),
        (("--model", f"lenet,{bare}", "--batch", "3"), "--batch: .*bare.trace does not say the batch of its times"),
    ):
        with pytest.raises((HostlibError, SimulationError, click.BadParameter), match=says):
            sweep("--output", str(output), *wrong)
        assert not output.exists()
    with pytest.raises(SimulationError, match="/dev/full cannot be read as a sweep's results: it is not a file"):
        sweep("--output", "/dev/full")
