"""Two ranks of device_ranks.py, and what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, Fabric
from tests.forked import Ranks

SCRIPT = ROOT / "tests" / "integration" / "pytorch" / "device_ranks.py"
PATIENCE_S = 100.0


def start(fabric: Fabric, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Two ranks, under torchrun."""
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            *rendezvous,
            SCRIPT,
            folder,
            *arguments,
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "NETFOLD_CONTROLLER": fabric.http,
            **environment,
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str] | Ranks, folder: Path) -> list[dict[str, Any]]:
    """What the ranks saw."""
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def wait_for(process: subprocess.Popen[str] | Ranks, *files: Path) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not all(file.exists() for file in files):
        assert time.monotonic() < give_up and process.poll() is None, files
        time.sleep(0.05)
