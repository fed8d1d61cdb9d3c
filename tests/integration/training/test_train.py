"""Training runs by the command: what the switch counts, and what is printed and kept. Whole runs are test_demo.py's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostlib.protocol.openings import TensorCut
from hostlib.protocol.slots import SLOTS_PER_POOL
from tests.conftest import ROOT, Fabric
from tests.training_runs import trained

WORLD_SIZE = 4
ONE_EPOCH = ("--epochs", "1", "--seed", "3")


def train(fabric: Fabric, *options: str) -> dict[str, Any]:
    """`hostlib train --json` to its end."""
    done = hostlib_train("--controller", fabric.http, "--json", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def hostlib_train(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostlib", "train", "--workers", str(WORLD_SIZE), "--no-progress", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def completed_slots(fabric: Fabric) -> int:
    return int(fabric.status()["events"]["completed"])


@pytest.fixture(scope="module")
def one_epoch(fabric: Fabric) -> dict[str, dict[str, Any]]:
    """A run for each strategy, and how many slots the switch completed meanwhile."""
    results = {}
    for strategy in ("wfbp", "bsp"):
        before = completed_slots(fabric)
        mechanism = ("--mechanism", f"{strategy}/inagg+mcast", "--workers", str(WORLD_SIZE))
        results[strategy] = trained("--controller", fabric.http, *mechanism, *ONE_EPOCH)
        results[strategy]["completed"] = completed_slots(fabric) - before
    return results


@pytest.mark.parametrize("strategy", ["wfbp", "bsp"])
def test_the_switch_completes_the_slots_that_were_predicted(
    strategy: str, fabric: Fabric, one_epoch: dict[str, dict[str, Any]]
) -> None:
    result = one_epoch[strategy]
    cut = TensorCut(result["elements_per_packet"], SLOTS_PER_POOL, 1, result["world_size"])
    predicted = sum(count * cut.positions(int(n)) for n, count in result["bucket_elements"].items())
    assert result["steps_chunks_total"] == predicted
    assert result["completed"] == predicted
    if strategy == "bsp":
        assert result["bucket_elements"] == {str(result["parameters"]): result["steps"]}
    assert fabric.status()["jobs"] == []


def test_the_same_seed_gives_the_same_weights_over_the_fabric(
    fabric: Fabric, one_epoch: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """And the file holds what is printed."""
    path = tmp_path / "result.json"
    again = train(fabric, "--mechanism", "wfbp/inagg+mcast", *ONE_EPOCH, "--output", str(path))
    assert again["weights_sha256"] == one_epoch["wfbp"]["weights_sha256"]
    assert json.loads(path.read_text()) == again
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    assert again["options"]["seed"] == again["seed"] == 3


def test_an_unknown_model_is_refused_in_one_line() -> None:
    done = hostlib_train("--mechanism", "ring", "--model", "alexnot")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "unknown model 'alexnot'; legal are MODULE:FACTORY, alexnet, cifar10_quick" in done.stderr
