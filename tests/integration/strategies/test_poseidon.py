"""Poseidon's ways of synchronising in real runs, against one process that trains on everybody's examples."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostlib.datasets.batches import batches, digits
from hostlib.models.inspection import layers_of
from hostlib.models.small import build_model
from hostlib.strategies.builtin.poseidon.traffic import Synchronisation, per_node
from hostlib.strategies.common.sync_cost import InformationBook, best_scheme
from hostlib.train.loop import MOMENTUM
from tests import training_runs
from tests.chaos.training import PATIENCE_S, TrainingRun

WORKERS, BATCH, STEPS, LR, SEED = 4, 16, 20, 0.05, 1
ROUNDING = 1e-6  # of weights up to 0.4 after so many steps; sums in another order


def trained(
    mechanism: str, path: Path, workers: int = WORKERS, **more: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A run's result and the weights that it ended with; all ranks have the same, bit for bit."""
    values = {"world-size": workers, "batch-size": WORKERS * BATCH // workers, "steps": STEPS, **more}
    options = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    result = training_runs.trained("--mechanism", mechanism, "--save", str(path), *options)
    assert len(result["weights_sha256"]) == workers
    assert len(set(result["weights_sha256"])) == 1
    return result, torch.load(path)


def difference(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert weights.keys() == expected.keys()
    return max(float((weights[name] - expected[name]).abs().max()) for name in expected)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return trained("bsp/ring", tmp_path_factory.mktemp("reference") / "weights.pt", workers=1)[1]


@pytest.mark.parametrize(
    "mechanism",
    [
        "hybcomm/ring",
        pytest.param("adam:servers=2", marks=(pytest.mark.slow, pytest.mark.crossed)),
        "poseidon:servers=2",
    ],
)
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


@pytest.mark.parametrize("scheme", ["hybcomm", "adam", "onebit"])
def test_links_carry_what_the_formulas_say(scheme: Synchronisation, tmp_path: Path) -> None:
    """A small VGG: of its fully connected layers the large ones are factors' by hybcomm, the small one the servers'."""
    servers, batch, steps = 2, 8, 10
    strategy = f"adam:servers={servers}" if scheme == "adam" else scheme
    result, _ = trained(
        f"{strategy}/ps:servers={servers}:assign=even",
        tmp_path / "weights.pt",
        **{"model": "vgg", "batch-size": str(batch), "steps": str(steps), "bucket-mb": "1"},
    )
    book = InformationBook(layers_of(build_model("vgg"), torch.zeros(1, 1, 8, 8)), WORKERS, servers, batch)
    assert [best_scheme(layer, book) for layer in book.trained if layer.matrix] == ["SFB", "SFB", "PS"]
    nodes = per_node(book, scheme, colocated=False)
    for rank in range(WORKERS):
        link, expected = result["link_bytes"][f"rank{rank}"], nodes[f"worker{rank}"]
        # Headers come on top: of messages, and for servers.
        assert expected.sent < link["sent"] / steps < 1.05 * expected.sent
        assert expected.received < link["received"] / steps < 1.05 * expected.received


# ---- the key-value store ----------------------------------------------------------------------------------------

DEADLINE_S = 4
STORE = ("--mechanism", "poseidon:servers=2:checkpoint=7", "--workers", "2", "--epochs", "6")


def test_a_killed_shard_comes_back_and_the_weights_are_the_same(tmp_path: Path) -> None:
    undisturbed = training_runs.trained(*STORE)["weights_sha256"]
    run = TrainingRun.start("--output", str(tmp_path / "result.json"), *STORE)
    try:
        run.wait_for_step()
        keeper = run.ranks()[2]
        for _ in range(2):
            shard = wait_for_shard(keeper)
            os.kill(shard, signal.SIGKILL)
            assert wait_for_shard(keeper, after=shard) != shard
        assert run.process.poll() is None
        assert run.end(PATIENCE_S) == 0, run.output
    finally:
        run.stop()
    assert json.loads((tmp_path / "result.json").read_text())["weights_sha256"] == undisturbed
    assert len(set(undisturbed)) == 1


@pytest.mark.slow
def test_a_shard_that_stops_is_named() -> None:
    run = TrainingRun.start(*STORE, "--epochs", "2000", "--deadline", str(DEADLINE_S))
    try:
        run.wait_for_step()
        os.kill(wait_for_shard(run.ranks()[2]), signal.SIGSTOP)
        assert run.end(within_s=DEADLINE_S + 15) == 1
        assert f"shard 0 of the key-value store has not answered for {DEADLINE_S} s" in run.error()
    finally:
        run.stop()


def wait_for_shard(keeper: int, after: int | None = None) -> int:
    """Its child, when there is one that lives and is not the one before."""
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        for child in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split():
            with suppress(FileNotFoundError):
                if " Z " not in Path(f"/proc/{child}/stat").read_text() and int(child) != after:
                    return int(child)
        time.sleep(0.01)
    raise AssertionError("no shard came back")
