"""The torch backend "netfold", as a user's own script meets it under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Fabric

SCRIPT = Path(__file__).with_name("backend_ranks.py")


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring", "gloo"])
def test_the_backend_reduces_and_passes_the_rest_on(
    mechanism: str, start_fabric: Callable[..., Fabric], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "NETFOLD_MECHANISM": mechanism,
        "NETFOLD_CONTROLLER": start_fabric().http,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            "0",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:0",
            SCRIPT,
            tmp_path,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for seen in ranks:
        for dtype in ("torch.float32", "torch.float16", "torch.bfloat16", "torch.int32"):
            assert seen[dtype] == [3 * (i % 7) for i in range(1000)], dtype
        assert seen["average"] == [0.5] * 5
        assert seen["strided"] == [[3.0] * 3] * 4
        assert "unknown dtype 'torch.float64'; legal are" in seen["float64"]
        assert "legal: SUM, AVG" in seen["max"]
        assert seen["gathered"] == [0, 1]
        assert seen["broadcast"] == [5.0] * 3
        assert seen["gradient"] == [[4.5] * 4] * 2
