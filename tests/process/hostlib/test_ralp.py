"""`hostlib ralp` of a model in the user's own folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 99))\n"
    )
    command = [sys.executable, "-m", "hostlib", "ralp", "mine:net", "--input", "8", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [(layer["name"], layer["params"]) for layer in printed["layers"]] == [("0", 72), ("2", 891)]
    assert (printed["partition"], printed["split_after"], printed["cost"]) == (True, "0", 80)
