"""A bad network changes nothing but the time: the weights are those of a good one, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Fabric

FAULTS = ("--loss", "0.02", "--duplicate", "0.02", "--reorder", "0.02", "--seed", "7")


def train(fabric: Fabric, result: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hostlib",
            "train",
            "--controller",
            fabric.http,
            "--result",
            str(result),
            "--deadline",
            "20",
            *options,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(result.read_text())


@pytest.mark.parametrize(
    "options", [("--steps", "30"), ("--mechanism", "bsp/inagg+mcast", "--model", "vgg", "--steps", "8")]
)
def test_loss_duplication_and_reordering_leave_the_weights_alone(
    start_fabric: Callable[..., Fabric], tmp_path: Path, options: tuple[str, ...]
) -> None:
    good_fabric = start_fabric()
    good = train(good_fabric, tmp_path / "good.json", *options)
    bad_fabric = start_fabric(*FAULTS)
    bad = train(bad_fabric, tmp_path / "bad.json", *options)
    assert len(set(good["weights_sha256"] + bad["weights_sha256"])) == 1
    assert sum(engine["retransmits"] for engine in bad["engine"]) > 0
    # Each slot completes once, however often its packets were lost or came twice.
    for fabric, run in ((good_fabric, good), (bad_fabric, bad)):
        assert fabric.status()["events"]["completed"] == run["steps_chunks_total"] > 0
    assert bad_fabric.status()["events"]["answered"] > 0
