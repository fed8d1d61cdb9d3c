"""ralp at work: the weights of one process alone, the same on all ranks, and one line when the tail's server is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.chaos.training import TrainingRun
from tests.conftest import ROOT
from tests.training_runs import trained

DEADLINE_S = 3
STEPS, WORKERS, BATCH = 20, 2, 16
ROUNDING = 1e-6  # docs/ralp.md; weights are below 1


@dataclass(frozen=True, slots=True)
class Run:
    """What a run ended with."""

    result: dict[str, Any]
    weights: dict[str, torch.Tensor]


def train(path: Path, mechanism: str, world_size: int = WORKERS, batch: int = BATCH) -> Run:
    """A run to its end; `path` is for its weights."""
    options = ["--mechanism", mechanism, "--workers", str(world_size), "--batch", str(batch)]
    return Run(trained(*options, "--iterations", str(STEPS), "--save", str(path)), torch.load(path))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process that has all workers' batches as one."""
    path = tmp_path_factory.mktemp("reference") / "weights.pt"
    return train(path, "bsp/ring", world_size=1, batch=WORKERS * BATCH)


@pytest.fixture(scope="module")
def with_servers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Parameter servers for the head, as in the paper."""
    return train(tmp_path_factory.mktemp("ralp") / "weights.pt", "ralp")


def check(run: Run, reference: Run, split: str | None, summed: int) -> None:
    """That it was cut there, summed so many gradients over the workers, and learnt what one process learns."""
    assert run.weights.keys() == reference.weights.keys()
    for name, value in reference.weights.items():
        torch.testing.assert_close(run.weights[name], value, rtol=0, atol=ROUNDING)
    assert len(set(run.result["weights_sha256"])) == 1
    assert run.result["strategy"]["split_after"] == split
    assert sum(int(size) * count for size, count in run.result["bucket_elements"].items()) == summed * STEPS


def test_the_weights_are_those_of_one_process(with_servers: Run, reference: Run) -> None:
    check(with_servers, reference, "features.5", 4800)


@pytest.mark.parametrize(
    ("mechanism", "split", "summed"),
    [
        ("ralp:split=classifier.1:all/ring", "classifier.1", 20280),
        pytest.param("ralp:threshold=-9/ring", None, 31294, marks=(pytest.mark.slow, pytest.mark.crossed)),
    ],
)
def test_so_they_are_wherever_it_is_cut(
    mechanism: str, split: str | None, summed: int, reference: Run, tmp_path: Path
) -> None:
    check(train(tmp_path / "weights.pt", mechanism), reference, split, summed)


def test_a_rerun_has_the_same_bits(with_servers: Run, tmp_path: Path) -> None:
    assert train(tmp_path / "weights.pt", "ralp").result["weights_sha256"] == with_servers.result["weights_sha256"]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=(pytest.mark.slow, pytest.mark.crossed))]
)
def test_a_tail_without_its_server_ends_the_run_by_name(number: signal.Signals) -> None:
    run = TrainingRun.start(
        "--epochs", "2000", "--deadline", str(DEADLINE_S), "--mechanism", "ralp/ring", "--workers", "2"
    )
    try:
        run.wait_for_step()
        pid = run.ranks()[2]
        os.kill(pid, number)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        killed = f"error: server 0 (pid {pid}) was killed by SIGKILL; the other ranks were stopped"
        stopped = "server 0 is missing: no sign of life"
        assert run.error() == killed if number == signal.SIGKILL else stopped in run.error()
    finally:
        run.stop()


def test_a_killed_worker_ends_the_run_by_name() -> None:
    run = TrainingRun.start(
        "--epochs", "2000", "--deadline", str(DEADLINE_S), "--mechanism", "ralp/ring", "--workers", "2"
    )
    try:
        run.wait_for_step()
        pid = run.ranks()[1]
        os.kill(pid, signal.SIGKILL)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert run.error() == f"error: rank 1 (pid {pid}) was killed by SIGKILL; the other ranks were stopped"
    finally:
        run.stop()


def test_a_layer_that_is_not_there_is_refused_in_one_line() -> None:
    command = [sys.executable, "-m", "hostlib", "train", "--mechanism", "ralp:split=fc6/ring", "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "unknown layer 'fc6'; legal are classifier.1, " in done.stderr
