"""Pipelines on real processes: the weights of one process that trains on all examples, whatever the schedule.

A pipeline's gradients are means over its micro-batches, which are equally large, so they are the batch's mean.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from tests.chaos.training import TrainingRun
from tests.training_runs import trained

BATCH, STEPS, SEED = 16, 6, 1  # of all workers together
ROUNDING = 1e-6  # of weights below 1, after so many steps; sums over the micro-batches are added in another order
GPT = "gpt2:layers=2:width=16:heads=2:context=8:classes=20"
USERS = "tests.integration.strategies.test_pipelines:users_model"
DATA = {"lenet": "digits", GPT: "synthetic:examples=200", USERS: "digits"}
DEADLINE_S = 4

TWO = ["gpipe", "1f1b", "interleaved", "modelparallel"]
FOUR = [
    "gpipe:stages=4:microbatches=2",
    "1f1b:stages=4",
    "interleaved:stages=2:microbatches=2",  # two pipelines
    "gpipe:stages=4:microbatches=4:recompute",
    "modelparallel:stages=4",
    "1f1b:stages=2:microbatches=4/gloo",  # two pipelines
]


class Block(nn.Module):
    """Changes its input in place, and adds it to what it makes of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.act, self.inner = nn.ELU(inplace=True), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x)
        return x + self.inner(x)


class UsersModel(nn.Module):
    """Not a Sequential: residual connections, a parameter of its own, sizes of the input, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(16, 24)
        self.places = nn.Parameter(torch.zeros(4, 24))
        self.blocks = nn.ModuleList(Block(24) for _ in range(3))
        self.twice = nn.Linear(24, 24)
        self.out = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        examples = x.shape[0]
        h = self.twice(self.into(x.reshape(examples, 4, 16)) + self.places)
        for block in self.blocks:
            h = block(h)
        return self.out(self.twice(h).view(examples, 4, 24).mean(1))  # type: ignore[no-any-return]


def users_model() -> nn.Module:
    return UsersModel()


def options(model: str, workers: int, steps: int = STEPS) -> list[str]:
    return [
        *("--model", model, "--data", DATA[model], "--workers", str(workers), "--batch", str(BATCH // workers)),
        *("--iterations", str(steps), "--seed", str(SEED)),
    ]


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@cache
def reference(model: str, folder: Path) -> dict[str, Tensor]:
    """One process that has all examples as one batch."""
    path = folder / "reference.pt"
    trained("--mechanism", "bsp/ring", "--save", str(path), *options(model, 1))
    found: dict[str, Tensor] = torch.load(path)
    return found


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.mark.parametrize("model", ["lenet", GPT, USERS], ids=["lenet", "gpt", "users"])
@pytest.mark.parametrize(
    ("mechanism", "workers"), [*((each, 2) for each in TWO), *(pytest.param(each, 4) for each in FOUR)]
)
def test_the_weights_are_those_of_one_process(
    mechanism: str, workers: int, model: str, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    result = trained("--mechanism", mechanism, "--save", str(path), *options(model, workers))
    assert len(result["weights_sha256"]) == workers and len(set(result["weights_sha256"])) == 1
    assert difference(torch.load(path), reference(model, folder)) < ROUNDING
    stages = 2 if "stages=2" in mechanism or workers == 2 else 4
    assert result["strategy"]["replicas"] == workers // stages
    parts = 2 * stages if mechanism.startswith("interleaved") else stages
    assert len(result["strategy"]["stages"].split(" | ")) == parts
    # Replicas sum the gradients of rank 0's stage, once in a step; a lone pipeline sums nothing.
    assert bool(result["bucket_elements"]) == (workers > stages)


def test_recomputing_and_the_order_of_passes_do_not_change_a_bit() -> None:
    """Batch normalisation, too: its statistics are those of each micro-batch, and are updated once."""
    model = "tests.integration.strategies.test_pipelines:normalising_model"
    DATA[model] = "digits"
    found = [
        trained("--mechanism", mechanism, *options(model, 2))["weights_sha256"][0]
        for mechanism in ("gpipe", "gpipe:recompute", "1f1b", "1f1b:recompute", "interleaved:recompute")
    ]
    assert len(set(found)) == 1


def normalising_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Untraceable(nn.Module):
    """Decides by values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x.is_meta:
            return self.one(x)  # type: ignore[no-any-return]
        return self.one(x) if float(x.sum()) > 0 else self.other(x)  # type: ignore[no-any-return]


def untraceable() -> nn.Module:
    return Untraceable()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--workers", "3"), "gpipe/ring: pipelines of 2 stages need a multiple of as many workers, not 3"),
        (("--batch", "3"), "2 workers x 3 examples cannot be cut into 4 equal micro-batches"),
        (("--mechanism", "interleaved:chunks=9"), "LeNet can be cut into 12 parts at most, not 18"),
        (
            ("--model", "tests.integration.strategies.test_pipelines:untraceable"),
            "Untraceable cannot be cut: .*make it a torch.nn.Sequential of its parts, or train it whole, as wfbp does",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(HostlibError, match=why) as refused:
        trained("--mechanism", "gpipe", "--workers", "2", "--iterations", "1", *words)
    assert "\n" not in str(refused.value)


def test_a_killed_stage_ends_the_run_by_name() -> None:
    run = TrainingRun.start(
        *("--epochs", "2000", "--deadline", str(DEADLINE_S), "--mechanism", "1f1b", "--workers", "2", "--batch", "8")
    )
    try:
        run.wait_for_step()
        pid = run.ranks()[1]
        os.kill(pid, signal.SIGKILL)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert run.error() == f"error: rank 1 (pid {pid}) was killed by SIGKILL; the other ranks were stopped"
    finally:
        run.stop()


@pytest.mark.slow
def test_a_stage_that_stops_is_named() -> None:
    run = TrainingRun.start(
        *("--epochs", "2000", "--deadline", str(DEADLINE_S), "--mechanism", "gpipe", "--workers", "4", "--batch", "8")
    )
    try:
        run.wait_for_step()
        os.kill(run.ranks()[3], signal.SIGSTOP)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert "rank 3 is missing: no sign of life" in run.error()
    finally:
        run.stop()
