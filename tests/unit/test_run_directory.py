"""The directory of `emulation run`: one run's at a time, and what is broken in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulation.errors import EmulationError
from emulation.run import Run, RunOptions, alone
from emulation.topology.realisation import Realisation
from simulation.experiment import read_experiment

SMALL = '[cells]\nmodels = ["lenet"]\nmechanisms = ["inagg+mcast"]\nbandwidths = ["1gbit"]\nworkers = [2]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def run(file: Path) -> Run:
    options = RunOptions(file.parent / "out", Realisation.LOOPBACK)
    return Run(read_experiment(file), options, lambda row: None)


def test_two_runs_at_a_time_would_undo_each_others_results(file: Path) -> None:
    with alone(file.parent / "out"), pytest.raises(EmulationError, match=r"another run is at work in .*/out: wait"):
        run(file).go()
    assert not list((file.parent / "out").iterdir())
    with alone(file.parent / "out"):
        pass  # it is free again


@pytest.mark.parametrize("broken", ["", "{", "3", "[1]", "[{}]", '{"cell": 1}'])
def test_results_that_are_none_are_named(file: Path, broken: str) -> None:
    out = file.parent / "out"
    out.mkdir()
    (out / "experiment.toml").write_text(SMALL)
    (out / "results.json").write_text(broken)
    with pytest.raises(
        EmulationError, match=r"results\.json cannot be read as cells' results \(.*\): mend or remove it"
    ):
        run(file)
    assert (out / "results.json").read_text() == broken
