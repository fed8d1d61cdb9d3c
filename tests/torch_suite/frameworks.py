"""Short scripts of Lightning, accelerate and transformers' Trainer, in which only the backend's name is netfold's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT

SCRIPTS = Path(__file__).with_name("scripts")
PATIENCE_S = 600.0


def names() -> list[str]:
    """The scripts' names, without .py."""
    return sorted(script.stem for script in SCRIPTS.glob("*_script.py"))


def outcome(name: str) -> tuple[str, str]:
    """Run a script on two ranks: "passed" or "failed", and why."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
        try:
            done = subprocess.run(
                [*command, "--rdzv-endpoint", "127.0.0.1:0", str(SCRIPTS / f"{name}.py"), folder],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            return "failed", f"no end within {PATIENCE_S:.0f} s"
        if done.returncode != 0:
            told = [line for line in done.stderr.splitlines() if "Error" in line]
            return "failed", (told or done.stderr.splitlines() or ["no word"])[0].strip()
        seen = [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(2)]
    for backend, weights, _, total in seen:
        if backend != os.environ["BACKEND"] or total != [2.0] or not weights:
            return "failed", f"backend {backend}, total {total}, {len(weights)} weights"
    if seen[0][1] != seen[1][1]:
        return "failed", "the ranks have different weights"
    return "passed", ""
