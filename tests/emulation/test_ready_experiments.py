"""Every ready experiment runs to its end: all its networks and cells, with tiny tensors and one iteration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation.experiments.runner import ready_experiments
from simulation.experiments.experiment_file import read_experiment

pytestmark = [pytest.mark.root, pytest.mark.slow]
# Their cells are like those of the others.
ALIKE = ("bandwidth", "consolidation", "fabric-vs-host", "loss", "poseidon", "window", "workers")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.crossed] if name in ALIKE else []) for name in ready_experiments()],
)
def test_it_runs_to_its_end_in_miniature(name: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "emulation", "run", name, "--miniature", "--output", str(output), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = read_experiment(ready_experiments()[name]).cells
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert [row["cell"] for row in rows] == [cell.name for cell in cells]
    for row, cell in zip(rows, cells, strict=True):
        assert row["iteration_ms"] > 0 and (output / "cells" / f"{cell.name}.json").exists()
        # Each worker of each job has sent and received something.
        workers = [row["bytes_per_node"][f"worker{rank}"] for rank in range(cell.workers * cell.jobs)]
        assert all(way > 0 for worker in workers for way in (worker["sent"], worker["received"])), row["cell"]
    assert json.loads((output / "run.json").read_text())["finished"] is not None
