"""Random cells, and a folder of experiments that is run as one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emulation.cli import main
from emulation.errors import EmulationError
from emulation.experiments.experiment_folder import FolderRun, comparison, experiment_files, read_folder
from emulation.experiments.measurement import Measured
from emulation.experiments.progress import print_comparison
from emulation.experiments.random_cells import (
    JOBS,
    LEAVES,
    MECHANISMS,
    MODELS,
    MOST_RANKS,
    WORKERS,
    RandomCell,
    random_cells,
    write_sample,
)
from emulation.experiments.random_questions import MODELS as QUESTION_MODELS
from emulation.experiments.random_questions import random_questions, write_questions
from emulation.experiments.regret import Regret, regret_sentence, regrets
from emulation.experiments.runner import ExperimentRun, RunOptions
from hostlib.strategies.strategy import choose
from hostlib.text import units
from simulation.errors import ExperimentError
from simulation.experiments.experiment_file import Cell, Experiment, read_experiment

SMALL = '[cells]\nmodels = ["lenet"]\nmechanisms = [{}]\nbandwidths = ["1gbit"]\nworkers = [2]\n'


def test_a_sample_is_of_the_whole_space_and_every_cell_can_be_read(tmp_path: Path) -> None:
    cells = list(islice(random_cells(5), 600))
    assert {cell.model for cell in cells} == set(MODELS) and {cell.mechanism for cell in cells} == set(MECHANISMS)
    assert {cell.workers for cell in cells} == set(range(WORKERS[0], WORKERS[1] + 1))
    assert {cell.jobs for cell in cells} == set(range(JOBS[0], JOBS[1] + 1))
    assert {cell.leaves for cell in cells} == {None, *range(LEAVES[0], LEAVES[1] + 1)}
    slow = sum(cell.gbit_s < 22 for cell in cells)  # below the geometric mean
    assert 0.4 < slow / len(cells) < 0.6 and all(5 <= cell.gbit_s <= 100 for cell in cells)
    assert max(Counter(cell.model for cell in cells).values()) < 100
    for path, drawn in zip(write_sample(5, 25, tmp_path), cells, strict=False):
        experiment = read_experiment(path)
        (cell,) = experiment.cells
        assert (cell.model, cell.mechanism, cell.workers, cell.jobs) == (
            drawn.model,
            drawn.mechanism,
            drawn.workers,
            drawn.jobs,
        )
        assert units.bandwidth(cell.bandwidth) == drawn.gbit_s * 1e9
        assert (cell.workers + choose(cell.mechanism).servers) * cell.jobs <= MOST_RANKS
        assert len(experiment.declared(cell).switches) == (1 if drawn.leaves is None else drawn.leaves + 1)


def test_a_seed_s_cells_stay_where_more_are_drawn(tmp_path: Path) -> None:
    few = [path.read_text() for path in write_sample(1, 3, tmp_path)]
    more = [path.read_text() for path in write_sample(1, 12, tmp_path)]
    assert more[:3] == few and len(set(more)) == 12
    assert [path.name for path in experiment_files(tmp_path)] == [f"cell{number:02}.toml" for number in range(1, 13)]
    with pytest.raises(EmulationError, match=r"cell01\.toml is of another sample: name another --output"):
        write_sample(2, 3, tmp_path)
    assert [path.read_text() for path in experiment_files(tmp_path)] == more


def test_jobs_that_would_need_more_slots_than_a_switch_has_are_not_drawn_and_not_run(tmp_path: Path) -> None:
    """Five jobs whose server multicasts in streams of chunks need 1,280 slots."""
    five = RandomCell("alexnet", "mcast", 2, 10, 5, None, 1.0)
    assert not five.is_possible and replace(five, jobs=4).is_possible
    file = tmp_path / "five.toml"
    file.write_text(five.file("Five jobs"))
    with pytest.raises(ExperimentError, match="needs 1280 slots of each switch, which has 1024"):
        ExperimentRun(read_experiment(file), RunOptions(tmp_path / "out"), lambda row: None)


def test_questions_have_the_recommended_plan_and_others_once_each(tmp_path: Path) -> None:
    told: list[str] = []
    files = write_questions(29, 3, 3, tmp_path, told.append)
    assert told == [f"question {number} of 3" for number in (1, 2, 3)]
    experiments = [read_experiment(path) for path in files]
    for number in (1, 2, 3):
        of = [each for each in experiments if each.name.startswith(f"question0{number}")]
        cells = [cell for each in of for cell in each.cells]
        assert 2 <= len(cells) <= 4 and len({cell.mechanism for cell in cells}) == len(cells)
        (named,) = [each for each in of if each.recommended is not None]
        assert named.recommended in {cell.mechanism for cell in named.cells}
        assert (
            len({(cell.model, cell.workers, cell.bandwidth, each.replay.tflops) for each in of for cell in each.cells})
            == 1
        )
    assert write_questions(29, 1, 3, tmp_path, told.append) == [path for path in files if "question01" in path.name]
    assert {each.model for each in islice(random_questions(1), 200)} == set(QUESTION_MODELS)


def test_a_recommended_plan_must_be_a_cell(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('recommended = "tree"\n' + SMALL.format('"ring"'))
    with pytest.raises(ExperimentError, match=r"recommended must be one of cells\.mechanisms, not 'tree'"):
        read_experiment(file)


def test_regret_is_over_all_files_of_a_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text('recommended = "ring"\n' + SMALL.format('"ring", "tree"'))
    (tmp_path / "b.toml").write_text(SMALL.format('"inagg+mcast"') + '[replay]\nbucket = "5MiB"\n')
    other = SMALL.replace("[2]", "[4]").format('"ring"')
    (tmp_path / "c.toml").write_text(f'recommended = "ring"\n{other}')
    experiments = read_folder(tmp_path)
    times = {"a": (110.0, 120.0), "b": (100.0,), "c": (300.0,)}
    rows = [
        {"experiment": each.name, "cell": cell.name, "iteration_ms": ms, "valid": True}
        for each in experiments
        for cell, ms in zip(each.cells, times[each.name], strict=True)
    ]
    first, second = regrets(experiments, rows)
    assert first == Regret("a: lenet-ring-1gbit-2w", "b: lenet-inagg+mcast-1gbit-2w", pytest.approx(0.1), 3, True)
    assert (second.regret, second.compared) == (0.0, 1)
    assert regret_sentence([first, second]) == (
        "recommended plans, 2 valid questions of 2: 1 are the fastest of those emulated, 1 take at most 2% longer, the "
        "worst 10.0% longer (a: lenet-ring-1gbit-2w)"
    )
    rows[2]["valid"] = False
    invalid = regrets(experiments, rows[:3])
    assert [each.valid for each in invalid] == [False]
    assert regret_sentence(invalid) == "regret: no question of 1 has valid times only"
    assert regrets(experiments, rows[1:2]) == []


def test_numbers_in_names_are_in_order(tmp_path: Path) -> None:
    for name in ("cell100", "cell9", "cell10", "b", "a"):
        (tmp_path / f"{name}.toml").write_text("")
    assert [path.stem for path in experiment_files(tmp_path)] == ["a", "b", "cell9", "cell10", "cell100"]


def test_the_command_says_what_runs_them(tmp_path: Path) -> None:
    folder = tmp_path / "sample"
    done = CliRunner().invoke(main, ["sample", "--seed", "4", "--cells", "2", "--output", str(folder)])
    assert done.stdout == f"2 cells in {folder}: `emulation run {folder}` runs them\n"
    done = CliRunner().invoke(main, ["sample", "--seed", "4", "--cells", "2", "--output", str(folder), "--json"])
    assert json.loads(done.stdout) == {"seed": 4, "files": [str(folder / f"cell0{n}.toml") for n in (1, 2)]}
    listed = CliRunner().invoke(main, ["run", str(folder), "--list", "--json"])
    rows = json.loads(listed.stdout)
    assert [row["experiment"] for row in rows] == ["cell01", "cell02"]
    assert not any(row["done"] for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mechanisms in (("one", '"inagg+mcast", "ring"'), ("two", '"ring"')):
        (tmp_path / f"{name}.toml").write_text(SMALL.format(mechanisms))
    return tmp_path


def run(folder: Path, **others: Any) -> FolderRun:
    options = RunOptions(folder, real=object(), **others)  # type: ignore[arg-type]
    return FolderRun(read_folder(folder), options, lambda row: None)


def test_a_folder_is_run_and_goes_on_where_it_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[str] = []

    def measure(real: object, experiment: Experiment, cell: Cell) -> Measured:
        if len(measured) == 2:
            measured.append("")
            raise EmulationError("a rank died")
        measured.append(f"{experiment.name}: {cell.mechanism}")
        return Measured([44.0, 50.0, 45.0], {}, {}, 0.0, 0, {})

    monkeypatch.setattr("emulation.experiments.runner.measure_on", measure)
    first = run(folder)
    assert len(first.cells) == len(first.left) == 3
    with pytest.raises(EmulationError, match="a rank died"):
        first.go()
    assert len(run(folder).left) == 1
    rows = run(folder).go()
    assert measured == ["one: inagg+mcast", "one: ring", "", "two: ring"]
    assert [(row["experiment"], row["mechanism"], row["topology"]) for row in rows] == [
        ("one", "inagg+mcast", {}),
        ("one", "ring", {}),
        ("two", "ring", {}),
    ]
    assert run(folder).left == [] and run(folder).rows == rows
    of = comparison([{**rows[0], "simulated_ms": 44.1}, {**rows[1], "simulated_ms": 46.8}, {**rows[2], "valid": False}])
    assert (of["compared"], of["largest_error_of"]) == (2, "one: lenet-ring-1gbit-2w")
    assert (of["median_error"], of["largest_error"]) == (pytest.approx(0.03), pytest.approx(0.04))
    measured_ms = rows[0]["iteration_ms"]
    around, above = (
        {"simulated_low_ms": measured_ms * low, "simulated_high_ms": measured_ms * 1.5} for low in (0.9, 1.1)
    )
    of = comparison([{**rows[0], **around}, {**rows[1], **above}, {**rows[2], **around, "valid": False}])
    assert (of["with_interval"], of["in_interval"]) == (2, 1)
    print_comparison([{**row, "simulated_ms": 44.1} for row in rows])
    assert "simulated against emulated, 3 valid cells of 3: median error 2.0%, largest 2.0%" in capsys.readouterr().out


def test_nothing_to_compare_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert comparison([])["median_error"] is None
    print_comparison([])
    assert "no cell is valid and simulated: there is nothing to compare" in capsys.readouterr().out


def test_folders_that_are_none_of_experiments_are_refused(folder: Path, tmp_path: Path) -> None:
    empty, results = tmp_path / "empty", tmp_path / "results"
    for each in (empty, results):
        each.mkdir()
    (results / "run.json").write_text("{}")
    with pytest.raises(EmulationError, match="empty has no experiment file: `emulation sample` writes some"):
        read_folder(empty)
    with pytest.raises(EmulationError, match="results has the results of an experiment: name the experiment"):
        read_folder(results)
    with pytest.raises(EmulationError, match="no cell of these experiments has 'vgg99' in its name"):
        run(folder, only="vgg99")
    assert [cell.mechanism for cell in run(folder, only="ring").cells] == ["ring", "ring"]
