"""The suite: what is selected, how cells become experiment files, and what their rows say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emulation.errors import EmulationError
from emulation.experiments.real_hosts import RealHost, RealHosts
from emulation.experiments.runner import RunOptions
from emulation.suite.catalogue import DATASETS, NETWORKS, Framework, find_framework, frameworks
from emulation.suite.selection import Selection, SuiteCell, Way
from emulation.suite.suite_run import SuiteRun, read_rows, row_of, with_speedups
from hostlib.datasets.dataset import examples_for, parse_dataset
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.strategies.strategy import registered_strategies
from netfold.cli import main
from simulation.experiments.experiment_file import read_experiment

SMALL = Selection(("mnist", "cifar10"), ("vgg11", "mobilenet2"), ("sequential", "ring", "hybcomm/ring"), (2,))


def netfold(*words: str) -> Result:
    return CliRunner().invoke(main, words, catch_exceptions=True)


def test_every_mechanism_and_strategy_without_shards_is_a_framework() -> None:
    assert {"sequential", "ring", "inagg+mcast", "ps"} < set(frameworks())
    whole = {name for name, each in registered_strategies().items() if not each.spec.sharded}
    assert whole == set(registered_strategies()) - {"fsdp", "zero1"}
    assert {name.partition("/")[0] for name in frameworks()} > whole - {"wfbp"}
    assert not {"fsdp", "zero1"} & {name.partition("/")[0] for name in frameworks()}
    assert "cgdp/ring" in frameworks()  # alone it sums within a host
    assert not {"gloo", "shm", "wfbp"} & set(frameworks())
    assert find_framework("ps:servers=2").mechanism(DATASETS["mnist"], 4, True) == "ps:servers=2"
    with pytest.raises(UnknownNameError, match="unknown framework 'rung'"):
        find_framework("rung")


def test_a_data_sets_batches_are_the_thesis() -> None:
    """Table 3.3; a pipeline of four has as many examples per worker as one of its four has."""
    batches = {name: (each.batch, each.pipeline_batch, each.microbatches) for name, each in DATASETS.items()}
    assert batches == {
        "mnist": (128, 3072, 24),
        "cifar10": (64, 2048, 32),
        "imagenet": (32, 384, 12),
        "highres": (32, 48, 12),
    }
    assert Framework("ring", "").batch(DATASETS["imagenet"]) == 32


def test_files_are_experiments_with_the_selections_cells() -> None:
    cells, left_out = SMALL.cells()
    assert len(cells) == 2 * 2 * 3 and not left_out
    files = SMALL.files(cells)
    assert list(files)[:2] == ["mnist-vgg11-1w-batch128", "mnist-vgg11-2w-batch128"] and len(files) == 8


def test_an_experiment_file_says_what_its_cells_are(tmp_path: Path) -> None:
    cells, _ = SMALL.cells()
    for name, text in SMALL.files(cells).items():
        (tmp_path / f"{name}.toml").write_text(text)
        experiment = read_experiment(tmp_path / f"{name}.toml")
        assert [cell.name for cell in experiment.cells] == [cell.name for cell in cells if cell.file == name]
        assert experiment.replay.batch == DATASETS[name.split("-")[0]].batch and experiment.replay.tflops == 10
    trains = replace(SMALL, way=Way.TRAIN, batch=4, data=("mnist:/data/mnist", "cifar10:/c"))
    files = trains.files(trains.cells()[0])
    (tmp_path / "train.toml").write_text(files["mnist-vgg11-2w-batch4"])
    training = read_experiment(tmp_path / "train.toml").training
    assert training is not None and (training.batch_size, training.data) == (4, "mnist:/data/mnist")
    assert 'data = "cifar10:/c"' in files["cifar10-vgg11-2w-batch4"]
    large = replace(trains, datasets=("imagenet", "highres"), data=("highres:/my:data",))
    files = large.files(large.cells()[0])
    assert 'data = "synthetic:examples=11"' in files["imagenet-vgg11-2w-batch4"]
    assert 'data = "images:/my:data:examples=11"' in files["highres-vgg11-2w-batch4"]


@pytest.mark.parametrize("training", [1, 4, 5, 8, 100, 512])
def test_synthetic_data_have_enough_examples_and_few_more(training: int) -> None:
    examples = parse_dataset(f"synthetic:examples={examples_for(training)}").examples
    tested = -(-examples // 5)
    assert training <= examples - tested <= max(training + 2, 4)


def test_a_cell_that_cannot_run_is_left_out_and_says_why() -> None:
    cells, left_out = replace(SMALL, frameworks=("ring", "ring+mcast"), workers=(2, 500)).cells()
    assert {(cell.framework, cell.workers) for cell in cells} == {("ring", 2), ("ring", 500), ("ring+mcast", 2)}
    within, left_within = replace(SMALL, frameworks=("ring", "cgdp")).cells()
    assert len(within) == 4 and all("is for workers of one host" in why for why in left_within.values())
    assert all("slots are too few for 500 streams" in why for why in left_out.values()) and len(left_out) == 4


def test_epochs_and_speed_ups_are_worked_out_from_iterations() -> None:
    """ImageNet: 1,280,000 images, 32 of each of 4 workers: 10,000 iterations."""
    cell = SuiteCell("imagenet", "resnet50", "ring", "ring", 4, "40gbit", 32)
    one = replace(cell, framework="sequential", workers=1)
    rows = [row_of(each, Way.SIMULATE, {"iteration_ms": ms}) for each, ms in ((one, 100.0), (cell, 125.0))]
    with_speedups(rows)
    assert [row["epoch_s"] for row in rows] == pytest.approx([4000.0, 1250.0])
    assert [row["speedup"] for row in rows] == pytest.approx([1.0, 3.2])
    assert rows[1]["images_per_s"] == pytest.approx(1024) and rows[1]["parameters"] == 25_557_032
    failed = row_of(cell, Way.TRAIN, {"failed": "no memory"})
    with_speedups([rows[0], failed])
    assert (failed["epoch_s"], failed["speedup"], failed["valid"]) == (None, None, False)


def test_a_simulated_suite_is_resumed_and_its_cells_are_those_of_its_files(tmp_path: Path) -> None:
    output = tmp_path / "suite"
    words = ["--datasets", "mnist", "--networks", "vgg11", "--frameworks", "sequential,ring", "--workers", "2,4"]
    first = netfold("suite", "run", *words, "--output", str(output), "--only", "2w", "--json")
    assert first.exit_code == 0, first.output
    assert [row["workers"] for row in read_rows(output)] == [2]
    again = netfold("suite", "run", *words, "--output", str(output), "--json")
    assert again.exit_code == 0, again.output
    rows = read_rows(output)
    assert [(row["framework"], row["workers"]) for row in rows] == [("sequential", 1), ("ring", 2), ("ring", 4)]
    assert rows[0]["speedup"] == 1 < rows[1]["speedup"] < rows[2]["speedup"]
    (simulated,) = json.loads(netfold("simulate", str(output / "mnist-vgg11-4w-batch128.toml"), "--json").stdout)
    assert simulated["iteration_ms"] == rows[2]["iteration_ms"]
    listed = json.loads(netfold("suite", "run", *words, "--output", str(output), "--list", "--json").stdout)
    assert [row["done"] for row in listed] == [True] * 3
    other = netfold("suite", "run", *words, "--output", str(output), "--bandwidth", "1gbit")
    assert isinstance(other.exception, EmulationError)
    assert "holds another selection of the suite (bandwidth): name another --output" in str(other.exception)
    record = json.loads((output / "suite.json").read_text())
    (output / "suite.json").write_text(json.dumps({**record, "predictor": "guess"}))
    guessed = netfold("suite", "run", *words, "--output", str(output))
    assert "has times of the predictor guess, not of simulator: continue with --predictor guess" in str(
        guessed.exception
    )
    (output / "suite.json").write_text(json.dumps(record))
    for name in ("plot.svg", "plot.png"):
        report = netfold("suite", "report", str(output), "--plot", str(tmp_path / name))
        assert report.exit_code == 0 and "sequential" in report.output and (tmp_path / name).stat().st_size > 1000


def test_a_simulated_cell_says_its_memory_and_fails_where_a_gpu_has_less(tmp_path: Path) -> None:
    """The thesis's ResNet-152 for Highres, 24 GB: PyTorch and Horovod ran out of memory, GPipe did not."""
    words = ["--datasets", "highres", "--networks", "resnet152,mobilenet2", "--frameworks", "sequential,ring,gpipe"]
    run = netfold("suite", "run", *words, "--gpu-memory", "24GB", "--output", str(tmp_path / "s"), "--json")
    assert run.exit_code == 0, run.output
    rows = {(row["network"], row["framework"]): row for row in json.loads(run.stdout)}
    failed = {name for name, row in rows.items() if row["failed"] is not None}
    assert failed == {("resnet152", "sequential"), ("resnet152", "ring")}
    ring = rows["resnet152", "ring"]
    assert ring["failed"] == f"it needs {ring['memory_bytes'] / 1e9:.1f} GB, and a GPU has 24 GB"
    assert ring["memory_bytes"] > 24e9 > rows["resnet152", "gpipe"]["memory_bytes"] > 1e9
    assert (ring["iteration_ms"], ring["speedup"], ring["peak_memory_bytes"]) == (None, None, None)


@pytest.mark.parametrize(
    ("way", "memory", "message"),
    [
        (Way.TRAIN, "24GB", "--gpu-memory 24GB is of --way simulate"),
        (Way.SIMULATE, "0", "--gpu-memory must be at least 1 byte, not 0"),
        (Way.SIMULATE, "24XB", "--gpu-memory"),
    ],
)
def test_a_wrong_memory_is_refused(way: Way, memory: str, message: str) -> None:
    with pytest.raises((EmulationError, HostlibError), match=message):
        replace(SMALL, way=way, gpu_memory=memory)


def test_broken_results_are_named(tmp_path: Path) -> None:
    words = ("--datasets", "mnist", "--networks", "vgg11", "--frameworks", "ring", "--output", str(tmp_path / "s"))
    assert netfold("suite", "run", *words).exit_code == 0
    (tmp_path / "s" / "results.json").write_text('[{"cell": 1}]')
    for command in (("suite", "report", str(tmp_path / "s")), ("suite", "run", *words)):
        broken = netfold(*command)
        assert isinstance(broken.exception, EmulationError), broken.output
        assert "results.json cannot be read as a suite's results" in str(broken.exception)


def test_a_cell_that_fails_has_a_row_and_the_others_run(tmp_path: Path) -> None:
    """On hosts that lack something: every cell fails in its own way, and the run goes to its end."""
    selection = Selection(("mnist",), ("mobilenet2",), ("ps", "inagg+mcast"), (2,), way=Way.TRAIN, batch=4)
    hosts = RealHosts((RealHost("127.0.0.1"), RealHost("127.0.0.1")))
    run = SuiteRun(selection, RunOptions(tmp_path / "s", real=hosts))
    events: list[dict[str, Any]] = []
    rows = run.go(events.append)
    why = {row["framework"]: row["failed"] for row in rows}
    assert "needs 3 hosts, with its servers" in why["ps"]
    assert "--switch-at ADDRESS runs one on this machine, --controller URL names a fabric's" in why["inagg+mcast"]
    assert "without, butterfly, " in why["inagg+mcast"] and why["inagg+mcast"].endswith("tree are legal")
    assert [event["event"] for event in events if event["event"] != "cell"] == ["failed"] * 2
    assert len(run.left) == 2  # they are tried again


def test_the_catalogue_is_listed() -> None:
    listed = json.loads(netfold("suite", "list", "--json").stdout)
    assert len(listed["datasets"]) == 4 and len(listed["networks"]) == 4 * len(NETWORKS)
    assert [each["name"] for each in listed["frameworks"]] == list(frameworks())
    assert netfold("suite", "list").exit_code == 0
