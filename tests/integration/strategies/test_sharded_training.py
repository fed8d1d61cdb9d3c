"""fsdp and zero1 train models with modules in modules, weights used twice, unused and frozen ones as bsp does, on two and
four ranks: the same bits on every rank after any number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import running_fabric
from tests.training_runs import trained

STEPS = 3
# Averages are off by 2^-24 for each addition of float32, and by less in the fabric; steps enlarge that.
CLOSE = 1e-5


class Awkward(nn.Module):
    """For the digits: what a unit may be like, 9 weights' tensors of uneven sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)  # uses its output layer's weights itself
        self.twice = nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm(8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.twice.weight
        self.unused = nn.Linear(3, 3)
        self.out = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.frozen(images.flatten(1).view(-1, 8, 8))
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        rows = torch.tanh_(self.twice(rows))
        rows = self.tied(self.norm(self.twice(rows)))
        return self.out(rows.flatten(1))


def network() -> nn.Module:
    return Awkward()


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_fabric(tmp_path_factory.mktemp("fabric")) as fabric:
        yield fabric.http


def run(
    folder: Path, controller: str, mechanism: str, workers: int, steps: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The result, and the weights."""
    path = folder / f"{mechanism.replace('/', ',')}-{workers}-{steps}.pt"
    words = {
        "mechanism": mechanism,
        "model": f"{__name__}:network",
        "workers": workers,
        "batch": 4,
        "iterations": steps,
        "bucket": "512",
        "controller": controller,
        "save": path,
    }
    result = trained(*(text for name, value in words.items() for text in (f"--{name}", str(value))))
    return result, torch.load(path)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast"])
@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_ranks_have_the_same_bits_and_bsps_weights(
    strategy: str, mechanism: str, workers: int, tmp_path: Path, controller: str
) -> None:
    for steps in (1, STEPS):
        result, weights = run(tmp_path, controller, f"{strategy}/{mechanism}", workers, steps)
        digests = result["weights_sha256"]
        for rank, engine in enumerate(result["engine"]):
            # Shards go through the switch; no place is taken for whole tensors, which are not summed.
            assert (engine is not None) == (mechanism == "inagg+mcast")
            # The engine's count is of the whole run, with the last gathers of the whole model.
            carried = result["link_bytes"][f"rank{rank}"]["sent"]
            assert carried > 0 and (engine is None or (engine["bytes_sent"] > 0 and carried > engine["bytes_sent"] / 2))
        assert result["elements_per_packet"] is None
        assert len(digests) == workers and len(set(digests)) == 1
        _, expected = run(tmp_path, controller, f"bsp/{mechanism}", workers, steps)
        assert weights.keys() == expected.keys()
        apart = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
        assert math.isfinite(apart) and apart <= CLOSE
    torch.manual_seed(1)
    moved = {name: float((weights[name] - value).abs().max()) for name, value in network().state_dict().items()}
    assert {name for name, far in moved.items() if far == 0} == {
        "frozen.weight",
        "frozen.bias",
        "unused.weight",
        "unused.bias",
    }
    assert max(moved.values()) > 100 * CLOSE
