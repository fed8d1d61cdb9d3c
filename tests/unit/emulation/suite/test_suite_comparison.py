"""Predictions of the suite beside another run of it: errors, recommendations, and what each way to recommend takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emulation.errors import EmulationError
from emulation.suite.suite_comparison import Comparison, Prediction, Recommendation, assumed_speedup
from netfold.cli import main

Row = dict[str, Any]
GPIPE = "gpipe:stages=4:microbatches=12/ring"


def netfold(*words: str) -> Result:
    return CliRunner().invoke(main, words, catch_exceptions=True)


def row(network: str, framework: str, iteration_s: float, epoch_s: float, workers: int = 4) -> Row:
    return {
        "cell": f"{network} {framework}",
        "batch": 32,
        "dataset": "mnist",
        "network": network,
        "framework": framework,
        "mechanism": GPIPE if framework == "gpipe" else "ring",
        "workers": workers,
        "iteration_ms": 1e3 * iteration_s,
        "epoch_s": epoch_s,
    }


def predicted(true: Row, epoch_s: float) -> Prediction:
    return Prediction(true, "guess", epoch_s / true["epoch_s"] * true["iteration_ms"] / 1e3, epoch_s)


ONE = row("vgg11", "sequential", 1.0, 100.0, workers=1)
RING, PIPE = row("vgg11", "ring", 1.6, 40.0), row("vgg11", "gpipe", 2.0, 33.0)
LARGE = row("resnet152", "gpipe", 8.0, 500.0)  # on one worker, and as a ring, it does not fit
COMPARED = Comparison([ONE, RING, PIPE, LARGE], [predicted(RING, 30.0), predicted(PIPE, 36.3), predicted(LARGE, 550.0)])


def test_errors_are_relative_to_the_other_run() -> None:
    ring, pipe = COMPARED.errors
    assert (ring.framework, ring.predictor, ring.cells) == ("ring", "guess", 1)
    assert (ring.median, ring.least, ring.most) == pytest.approx((0.25, -0.25, -0.25))
    assert (ring.close, ring.networks, ring.close_networks) == (0, 1, 0)
    assert (pipe.cells, pipe.close, pipe.networks, pipe.close_networks) == (2, 2, 2, 2)
    assert (pipe.median, pipe.most) == pytest.approx((0.1, 0.1))


def test_the_framework_of_the_shortest_predicted_epoch_is_recommended() -> None:
    vgg, resnet = COMPARED.recommendations
    assert vgg == Recommendation("mnist", "vgg11", 4, "ring", "gpipe", pytest.approx(40 / 33 - 1)) and not vgg.is_right
    assert resnet == Recommendation("mnist", "resnet152", 4, "gpipe", "gpipe", 0) and resnet.is_right


def test_each_way_takes_what_it_runs() -> None:
    """10 batches of one worker; an epoch of it; 10 iterations of each framework; 3 epochs of each.

    Where one worker's memory is too small, nothing can be run on it, and what fits is recommended.
    """
    ways = {each.name: each for each in COMPARED.alternatives}
    assert {name: each.right for name, each in ways.items()} == {"equations": 1, "hardware": 1, "data": 2, "suite": 2}
    took = {name: (each.took_s, each.worker_s) for name, each in ways.items()}
    assert took["equations"] == pytest.approx((10, 10)) and took["hardware"] == pytest.approx((100, 100))
    assert took["data"] == pytest.approx((116, 4 * 116))
    assert took["suite"] == pytest.approx((3 * 573, 12 * 573))
    assert ways["hardware"].recommendations[0].recommended == "ring"  # 25 s, and 31.25 s by equation 6.1
    assert Comparison([RING, PIPE], [predicted(RING, 1.0)]).alternatives == []


def test_without_an_epoch_of_one_worker_hardware_tells_nothing_apart() -> None:
    large = row("resnet152", "1f1b", 9.0, 600.0) | {"mechanism": GPIPE}
    found = Comparison([ONE, LARGE, large], [predicted(LARGE, 1.0), predicted(large, 2.0)]).alternatives
    (hardware,) = next(each.recommendations for each in found if each.name == "hardware")
    assert (hardware.recommended, hardware.fastest, hardware.regret) == (None, "gpipe", None) and not hardware.is_right


def test_a_speedup_is_assumed_without_communication() -> None:
    assert assumed_speedup("ring", 16) == 16
    assert assumed_speedup(GPIPE, 4) == pytest.approx(1 / 0.3125)  # table 6.1
    assert assumed_speedup(GPIPE, 8) == pytest.approx(2 / 0.3125)
    assert assumed_speedup("modelparallel:stages=4/ring", 4) == 1


def test_directories_are_compared(tmp_path: Path) -> None:
    words = ("--datasets", "mnist", "--networks", "vgg11", "--frameworks", "sequential,ring,gpipe,ps", "--workers", "2")
    folders = {name: str(tmp_path / name) for name in ("simulator", "horovod", "gpipe")}
    for name, folder in folders.items():
        run = netfold("suite", "run", *words, "--predictor", name, "--output", folder)
        assert run.exit_code == 0, run.output
    compared = netfold("suite", "compare", *folders.values(), "--json")
    assert compared.exit_code == 0, compared.output
    found = json.loads(compared.stdout)
    assert [(each["framework"], each["predictor"]) for each in found["cells"]] == [
        ("ring", "horovod"),
        ("gpipe", "gpipe"),
    ]
    assert all(each["error"] == each["predicted_epoch_s"] / each["epoch_s"] - 1 for each in found["cells"])
    assert [each["name"] for each in found["ways"]] == ["equations", "hardware", "data", "suite"]
    for name in ("errors.svg", "errors.png"):
        drawn = netfold("suite", "compare", *folders.values(), "--plot", str(tmp_path / name))
        assert drawn.exit_code == 0 and "recommended" in drawn.output and (tmp_path / name).stat().st_size > 1000
    only = netfold("suite", "compare", *folders.values(), "--frameworks", "ring", "--markdown")
    assert only.output.count("###") == 2 and "| `vgg11` |" in only.output and "gpipe" not in only.output
    nothing = netfold("suite", "compare", folders["horovod"], folders["gpipe"])
    assert isinstance(nothing.exception, EmulationError) and "has no cell of several workers that is in" in str(
        nothing.exception
    )
