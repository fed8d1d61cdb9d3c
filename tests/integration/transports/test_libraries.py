"""Libraries' own all-reduces: MPI's under mpirun, and what is said where a library is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hostlib.errors import HostlibError
from hostlib.pytorch.backend import NetfoldProcessGroup
from tests.conftest import MPI, MPIRUN_NICELY, ROOT
from tests.integration.transports import library_ranks

STEPS = 20


def mpirun(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*MPIRUN_NICELY, "-n", str(processes), sys.executable, "-m", *arguments]
    environment = {**os.environ, **MPI}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.mpi
@pytest.mark.slow
def test_mpi_sums_as_gloo_does_with_2_3_and_4_workers() -> None:
    done = mpirun(library_ranks.PROCESSES, library_ranks.__name__)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    ranks = {(result["workers"], result["rank"]) for result in results}
    assert ranks == {(workers, rank) for workers in (2, 3, 4) for rank in range(workers)}
    assert [result for result in results if result["different"]] == []
    assert all("unknown dtype 'torch.float64'; legal are" in result["refused"] for result in results)


@pytest.mark.mpi
@pytest.mark.slow
def test_mpirun_trains_with_mpis_own(tmp_path: Path) -> None:
    result_path = tmp_path / "result.json"
    options = ["--transport", "mpi", "--mechanism", "mpi", "--iterations", str(STEPS), "--output", str(result_path)]
    done = mpirun(3, "hostlib.train", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(result_path.read_text())
    assert len(result["weights_sha256"]) == 3
    assert len(set(result["weights_sha256"])) == 1
    # By TCP here, where the kernel counts it; however MPI sums, a rank's own values must leave it.
    values = sum(int(size) * count for size, count in result["bucket_elements"].items())
    assert all(link["sent"] >= 4 * values for link in result["link_bytes"].values())


@pytest.mark.mpi
@pytest.mark.slow
def test_mpirun_trains_pipelines_whose_replicas_are_summed_over_mpi(tmp_path: Path) -> None:
    result_path = tmp_path / "result.json"
    options = ["--transport", "mpi", "--mechanism", "gpipe/ring", "--iterations", "3", "--output", str(result_path)]
    done = mpirun(4, "hostlib.train", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(result_path.read_text())
    assert len(result["weights_sha256"]) == 4 and len(set(result["weights_sha256"])) == 1
    assert result["strategy"]["replicas"] == 2


@pytest.mark.mpi
def test_under_mpirun_the_transport_must_be_mpi() -> None:
    done = mpirun(2, "hostlib.train", "--mechanism", "mpi", "--iterations", "1")
    assert done.returncode != 0
    assert "legal: mpirun -n 4 python -m hostlib.train --transport mpi --mechanism mpi" in done.stderr


@pytest.mark.mpi
def test_under_torchrun_the_transport_cannot_be_mpi() -> None:
    script = "import netfold\nwith netfold.session('ring', transport='mpi'): pass"
    environment = {**os.environ, **MPI, "RANK": "0", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "RunError: WORLD_SIZE says 2 processes, MPI has 1: start them with mpirun" in done.stderr


@pytest.mark.parametrize(
    ("mechanism", "line"),
    [
        ("mpi", "legal: mpirun -n 4 python -m hostlib.train --transport mpi --mechanism mpi"),
        pytest.param(
            "nccl",
            "nccl needs torch built with NCCL" if not dist.is_nccl_available() else "nccl needs a CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="here it is legal: see tests/cuda"),
        ),
    ],
)
def test_a_library_that_is_not_here_is_refused_by_the_backend(
    mechanism: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NETFOLD_MECHANISM", mechanism)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(HostlibError) as refused:
        NetfoldProcessGroup(store, 0, 1, timedelta(seconds=5))
    assert line in str(refused.value)
    assert store.num_keys() == 0 or not store.check(["netfold/job"])
