"""`hostlib overlap` and `hostlib cgdp check`: what they print comes from real runs, and adds up."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hostlib.strategies.builtin.cgdp.cost_model import LayerCost, partition, predict, without_overlap
from tests.conftest import ROOT


def hostlib(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hostlib", *words], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def test_bsp_is_exposed_as_long_as_it_communicates_and_wfbp_no_longer() -> None:
    done = hostlib("overlap", "--iterations", "8", "--repeats", "1", "--bucket", "0.05MiB", "--json")
    assert done.returncode == 0, done.stderr
    bsp, wfbp = json.loads(done.stdout)
    assert (bsp["mechanism"], wfbp["mechanism"]) == ("bsp/ring", "wfbp/ring")
    assert bsp["exposed_ms"] == bsp["communication_ms"] > 0
    assert 0 < wfbp["exposed_ms"] < wfbp["communication_ms"]
    assert wfbp["ratio"] == pytest.approx(wfbp["exposed_ms"] / bsp["exposed_ms"])
    assert all(row["iteration_ms"] > row["exposed_ms"] for row in (bsp, wfbp))


def test_the_cost_model_is_checked_against_real_steps() -> None:
    done = hostlib("cgdp", "check", "cifar10_quick", "--chunk", "1,2", "--iterations", "3", "--batch", "2", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    costs = [LayerCost(*(layer[name] for name in LayerCost.__slots__)) for layer in printed["layers"]]
    assert len(costs) == 5
    assert all(time > 0 for cost in costs for time in (cost.backward, cost.accumulation, cost.broadcast))
    assert [row["chunk"] for row in printed["backward"]] == [1, 2, None]
    for row in printed["backward"][:2]:
        prediction = predict(costs, partition(5, row["chunk"]))
        assert (row["predicted_s"], row["chunks"]) == (pytest.approx(prediction.total), len(prediction.chunks))
        assert row["measured_s"] > 0
    assert printed["backward"][2]["predicted_s"] == pytest.approx(without_overlap(costs))
    assert printed["times"] == {str(row["chunk"]): row["measured_s"] for row in printed["backward"][:2]}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("overlap", "--mechanism", ","), "--mechanism names nothing to compare"),
        (("overlap", "--repeats", "0"), "--repeats must be at least 1, not 0"),
        (("overlap", "--mechanism", "bps/ring"), "unknown strategy 'bps'; legal are"),
        (("cgdp", "check", "alexnot"), "unknown model 'alexnot'; legal are"),
        (("cgdp", "check", "lenet", "--workers", "0"), "--workers must be at least 1, not 0"),
        (("cgdp", "check", "lenet", "--input", "3xx"), "--input: '3xx' is not a shape such as 3x224x224"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: tuple[str, ...], line: str) -> None:
    done = hostlib(*words)
    assert done.returncode in (1, 2)
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
