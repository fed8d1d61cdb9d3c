"""Training with parameter servers of their own, and under mpirun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.training import TrainingRun
from tests.conftest import MPI, MPIRUN_NICELY, ROOT

DEADLINE_S = 3
STEPS = 20


def hostlib(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hostlib", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_workers_train_with_two_servers(tmp_path: Path) -> None:
    done = hostlib(
        "train",
        "--mechanism",
        "ps:servers=2:assign=even",
        "--workers",
        "2",
        "--iterations",
        str(STEPS),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["weights_sha256"]) == 2
    assert len(set(result["weights_sha256"])) == 1
    values = sum(int(size) * count for size, count in result["bucket_elements"].items())
    for link in result["link_bytes"].values():
        assert 4 * values < link["sent"] < 1.1 * 4 * values


@pytest.mark.slow
def test_a_server_that_stops_is_named() -> None:
    mechanism = ("--mechanism", "ps:servers=2:assign=even", "--workers", "2")
    run = TrainingRun.start("--epochs", "2000", "--deadline", str(DEADLINE_S), *mechanism)
    try:
        run.wait_for_step()
        pid = run.ranks()[3]
        os.kill(pid, signal.SIGSTOP)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert "server 1 is missing: no sign of life" in run.error()
    finally:
        run.stop()


@pytest.mark.mpi
def test_mpirun_trains(tmp_path: Path) -> None:
    """Two workers and, as the last process, a server."""
    options = [
        "--transport",
        "mpi",
        "--mechanism",
        "ps",
        "--iterations",
        str(STEPS),
        "--output",
        str(tmp_path / "result.json"),
    ]
    done = subprocess.run(
        [*MPIRUN_NICELY, "-n", "3", sys.executable, "-m", "hostlib.train", *options],
        cwd=ROOT,
        env={**os.environ, **MPI},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["world_size"] == 2
    assert len(set(result["weights_sha256"])) == 1


def test_mpi_without_mpirun_is_refused() -> None:
    done = hostlib("train", "--transport", "mpi", "--mechanism", "ring")
    assert done.returncode == 1
    assert "--transport mpi needs mpirun: mpirun -n 4 python -m hostlib.train --transport mpi" in done.stderr
