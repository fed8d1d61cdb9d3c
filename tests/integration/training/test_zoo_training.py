"""Networks of the zoo, and users' own, trained by several ranks: as one process trains them on all the examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TOLERANCE = 2e-4  # of sums in another order, after some steps

MINE = """
from torch import nn

def network():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    model.input_shape = (3, 8, 8)
    return model
"""


def train(folder: Path, ranks: int, model: str, steps: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The result, and the weights that it ended with; started in `folder`, 16 examples per step."""
    saved = folder / f"weights{ranks}.pt"
    sizes = ("--workers", str(ranks), "--batch", str(16 // ranks), "--iterations", str(steps), "--lr", "0.01")
    run = (
        "--mechanism",
        "bsp/ring",
        "--no-progress",
        "--json",
        "--save",
        str(saved),
        "--data",
        "synthetic:examples=80",
    )
    done = subprocess.run(
        [sys.executable, "-c", "from hostlib.cli import run; run()", "train", *run, *sizes, "--model", model],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), torch.load(saved)


@pytest.mark.parametrize(
    ("model", "steps"),
    [
        # Its normalisations make much of little: in float32, not in float64, roundings grow a hundredfold in a step.
        pytest.param("mobilenet2:pixels=32:classes=5", 1, marks=(pytest.mark.slow, pytest.mark.crossed)),
        pytest.param("gpt2:context=16:layers=1:width=32:heads=4:classes=40", 4, marks=pytest.mark.slow),
        ("mine_to_train:network", 4),
    ],
)
def test_two_ranks_train_as_one_does(tmp_path: Path, model: str, steps: int) -> None:
    (tmp_path / "mine_to_train.py").write_text(MINE)
    together, weights = train(tmp_path, 2, model, steps)
    alone, reference = train(tmp_path, 1, model, steps)
    assert together["steps"] == alone["steps"] == steps
    assert len(set(together["weights_sha256"])) == 1
    assert weights.keys() == reference.keys()
    assert sum(value.numel() for value in weights.values()) >= together["parameters"]
    assert max(float((weights[name] - reference[name]).abs().max()) for name in weights) < TOLERANCE
