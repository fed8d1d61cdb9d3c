"""The directory of `emulation run`: one run's at a time, and what is broken in it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulation.cli import main
from emulation.errors import EmulationError
from emulation.experiments.measurement import Measured
from emulation.experiments.progress import print_rows
from emulation.experiments.runner import ExperimentRun, RunOptions, alone, row_of
from emulation.networks.realise import NetworkKind
from hostlib.errors import UnknownNameError
from hostlib.system.plugins import Registry
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import read_experiment
from simulation.predictors import predictor
from simulation.predictors.predictor import Estimate, PredictorSpec

SMALL = '[cells]\nmodels = ["lenet"]\nmechanisms = ["inagg+mcast"]\nbandwidths = ["1gbit"]\nworkers = [2]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def run(file: Path, **others: Any) -> ExperimentRun:
    options = RunOptions(file.parent / "out", NetworkKind.LOOPBACK, **others)
    return ExperimentRun(read_experiment(file), options, lambda row: None)


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
        EmulationError, match=r"results\.json cannot be read as cells' results \(.*\): fix or remove it"
    ):
        run(file)
    assert (out / "results.json").read_text() == broken


def row(cell: str) -> dict[str, Any]:
    return {
        "cell": cell, "model": "lenet", "mechanism": "inagg+mcast", "workers": 2, "bandwidth": "1gbit", "jobs": 1,
        "loss": 0.0, "dilation": 1.0, "iteration_ms": 5.5, "iteration_ms_spread": 0.1, "simulated_ms": None, "valid": True,
        "bottleneck": None, "enough_dilation": None, "bytes_per_node": {"worker0": {"sent": 1, "received": 2}},
        "retransmits": 0, "cpu": {"machine": 0.5}, "late": 0.0,
    }  # fmt: skip


def test_results_of_before_are_taken_over(file: Path) -> None:
    (cell,) = read_experiment(file).cells
    out = file.parent / "out"
    out.mkdir()
    (out / "experiment.toml").write_text(SMALL)
    (out / "results.json").write_text(json.dumps([row(cell.name)]))
    assert run(file).left == [] and run(file).rows == {cell.name: row(cell.name)}
    (out / "results.json").write_text(json.dumps([{**row(cell.name), "workers": "two"}]))
    with pytest.raises(EmulationError, match=r"\[0\]\.workers: .*, not 'two'\): fix or remove it$"):
        run(file)


def test_a_cell_that_was_not_valid_is_measured_again_more_slowly(file: Path) -> None:
    (cell,) = read_experiment(file).cells
    out = file.parent / "out"
    out.mkdir()
    (out / "experiment.toml").write_text(SMALL)
    hasty = {
        **row(cell.name),
        "valid": False,
        "bottleneck": "the machine was busy",
        "enough_dilation": 4,
        "dilation": 2.0,
    }
    (out / "results.json").write_text(json.dumps([hasty]))
    assert run(file).left == run(file, dilation=2.0).left == []
    again, slower = run(file, auto_dilate=True), run(file, dilation=3.0)
    assert again.left == slower.left == [cell]
    assert (again.dilation(cell), slower.dilation(cell)) == (4.0, 3.0)
    (out / "results.json").write_text(json.dumps([{**hasty, "enough_dilation": None}]))
    assert run(file, auto_dilate=True).left == []


@pytest.mark.parametrize(
    "broken, says",
    [
        ("", "Invalid JSON"),
        ("[]", "not \\[\\]"),
        ("{}", "started: Field required"),
        ('{"started": 3}', "started: Input should be a valid string, not 3"),
    ],
)
def test_a_run_json_that_is_none_is_named(file: Path, broken: str, says: str) -> None:
    out = file.parent / "out"
    out.mkdir()
    (out / "experiment.toml").write_text(SMALL)
    (out / "run.json").write_text(broken)
    with pytest.raises(
        EmulationError, match=rf"run\.json cannot be read as what a run was \(.*{says}.*\): fix or remove it"
    ) as error:
        run(file)
    assert "\n" not in str(error.value)
    assert (out / "run.json").read_text() == broken


@pytest.mark.parametrize(
    "topology, says",
    [
        ('kind = "ring"', "topology: unknown kind 'ring'; legal are "),
        ("leaves = 2", "topology of kind star has no key 'leaves'; legal are "),
        ('kind = "leaf-spine"\nleaves = "two"', "topology: leaves 'two' is not a whole number"),
        ('delay = "soon"', "delay 'soon' is not a number"),
        ("loss = 2.0", "loss 2.0 is not a probability"),
    ],
)
def test_a_network_that_cannot_be_is_refused_before_anything_is_listed_or_run(
    file: Path, topology: str, says: str
) -> None:
    file.write_text(f"{SMALL}[topology]\n{topology}\n")
    listed = CliRunner().invoke(main, ["run", str(file), "--on", "loopback", "--list"])
    assert isinstance(listed.exception, (EmulationError, SimulationError))
    assert str(listed.exception).startswith(f"{file}: ") and says in str(listed.exception)
    assert "\n" not in str(listed.exception) and listed.stdout == ""


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch) -> PredictorSpec:
    """One more predictor."""
    spec = PredictorSpec("guess", "always the same", lambda workload, cluster, plan: Estimate(0.0425))
    specs = {**predictor.predictors().specs, "guess": spec}
    monkeypatch.setattr(predictor, "predictors", lambda: Registry(specs, ()))
    return spec


def test_predicted_times_are_the_asked_predictors(
    file: Path, guess: PredictorSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = Measured([40.0], {}, {}, 0.0, 0, {})
    experiment = read_experiment(file)
    monkeypatch.setattr("emulation.experiments.runner.measure_on", lambda real, experiment, cell: measured)
    (row,) = run(file, real=object(), predictor="guess").go()
    assert row == row_of(experiment, experiment.cells[0], 1.0, measured, guess) and row["simulated_ms"] == 42.5
    simulated = row_of(experiment, experiment.cells[0], 1.0, measured, predictor.find_predictor())["simulated_ms"]
    assert simulated not in (None, 42.5)
    assert json.loads((file.parent / "out" / "run.json").read_text())["predictor"] == "guess"
    print_rows(experiment, [row], "guess")
    assert {"guess", "42.5", "+6.2%"} <= set(capsys.readouterr().out.split())
    with pytest.raises(
        EmulationError, match=r"has times of the predictor guess, not of simulator: continue with --predictor guess"
    ):
        run(file)
    assert run(file, predictor="guess").left == []


def test_an_unknown_predictor_is_answered_with_the_registered_ones(file: Path, guess: PredictorSpec) -> None:
    asked = CliRunner().invoke(main, ["run", str(file), "--on", "loopback", "--list", "--predictor", "magic"])
    assert isinstance(asked.exception, UnknownNameError)
    legal = ", ".join(sorted(predictor.predictors().specs))
    assert "guess" in legal and str(asked.exception) == f"unknown predictor 'magic'; legal are {legal}"
    assert asked.stdout == "" and not (file.parent / "out").exists()


def test_the_network_is_all_cells_also_where_only_some_are_measured(tmp_path: Path) -> None:
    """`ps` has a server, and the tree a link for it; `ring` alone is measured in the same network."""
    file = tmp_path / "tree.toml"
    links = '[{lower = ["worker0", "worker1", "server0"], upper = "a"}]'
    cells = SMALL.replace('"inagg+mcast"', '"inagg+mcast", "ps"')
    file.write_text(f'{cells}[topology]\nkind = "custom"\nswitches = ["a"]\nlinks = {links}\n')
    assert [cell.mechanism for cell in run(file, only="inagg").cells] == ["inagg+mcast"]
