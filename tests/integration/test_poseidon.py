"""Poseidon's ways of synchronising in real runs, against one process that trains on everybody's examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostlib.data import batches, digits
from hostlib.models import build_model
from hostlib.train import MOMENTUM
from tests.integration.test_servers import hostlib

WORKERS, BATCH, STEPS, LR, SEED = 4, 16, 20, 0.05, 1
ROUNDING = 1e-6  # of weights up to 0.4 after so many steps; sums in another order


def trained(
    mechanism: str, path: Path, workers: int = WORKERS, **more: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A run's result and the weights that it ended with; all ranks have the same, bit for bit."""
    told = {"world-size": workers, "batch-size": WORKERS * BATCH // workers, "steps": STEPS, **more}
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    done = hostlib("train", "--mechanism", mechanism, "--save", str(path), "--json", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["weights_sha256"]) == workers
    assert len(set(result["weights_sha256"])) == 1
    return result, torch.load(path)


def difference(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert weights.keys() == expected.keys()
    return max(float((weights[name] - expected[name]).abs().max()) for name in expected)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return trained("bsp/ring", tmp_path_factory.mktemp("reference") / "weights.pt", workers=1)[1]


@pytest.mark.parametrize("mechanism", ["hybcomm/ring", "adam:servers=2"])
def test_the_weights_are_those_of_one_process(mechanism: str, reference: dict[str, Tensor], tmp_path: Path) -> None:
    _, weights = trained(mechanism, tmp_path / "weights.pt")
    assert difference(weights, reference) < ROUNDING


def test_one_bit_does_what_its_algorithm_says(reference: dict[str, Tensor], tmp_path: Path) -> None:
    _, weights = trained("onebit/ring", tmp_path / "weights.pt")
    expected = by_one_bit()
    assert difference(weights, expected) < ROUNDING
    assert difference(expected, reference) > 100 * ROUNDING


def by_one_bit() -> dict[str, Tensor]:
    """The same training in one process: each rank's gradients by themselves, quantised column by column."""
    torch.manual_seed(SEED)
    model, data = build_model("lenet"), digits(SEED)
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    weights = {name: p for name, p in model.named_parameters() if name.startswith("classifier") and p.dim() == 2}
    left = {(rank, name): torch.zeros_like(p) for rank in range(WORKERS) for name, p in weights.items()}
    ranks = [batches(len(data.train_labels), BATCH, rank, WORKERS, SEED, 0) for rank in range(WORKERS)]
    for _, *chosen in zip(range(STEPS), *ranks, strict=False):
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for rank, examples in enumerate(chosen):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.train_images[examples]), data.train_labels[examples]).backward()
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                assert gradient is not None
                if name in weights:
                    wanted = gradient + left[rank, name]
                    gradient = in_one_bit(wanted)
                    left[rank, name] = wanted - gradient
                total[name] += gradient / WORKERS
        for name, parameter in model.named_parameters():
            parameter.grad = total[name]
        optimiser.step()
    return model.state_dict()


def in_one_bit(values: Tensor) -> Tensor:
    made = values.clone()
    for column in made.T:
        for some in (column < 0, column >= 0):
            column[some] = column[some].mean()
    return made
