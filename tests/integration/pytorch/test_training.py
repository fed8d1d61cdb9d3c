"""What torch builds upon a backend: a compiled DDP, uneven inputs, and the timeout of a group."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("training_ranks.py")
PATIENCE_S = 110.0
TIMEOUT_S = 3.0  # training_ranks.py gives it to init_process_group
MECHANISMS = ("inagg+mcast", "ring")


def seen_by_ranks(
    forks: ForkServer, fabric: Fabric, folder: Path, mechanism: str, what: str, **environment: str
) -> list[Any]:
    names = {"NETFOLD_MECHANISM": mechanism, "NETFOLD_CONTROLLER": fabric.http, **environment}
    ranks = Ranks(forks, folder, SCRIPT, folder, what, **names)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def by_hand(steps: list[int]) -> list[list[float]]:
    """The weights of training_ranks.py's model after each rank's steps.

    As Join says: a rank whose inputs are over gives nothing, and sums are divided by the ranks that there were at first.
    """
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(max(steps)):
        optimiser.zero_grad()
        for rank, own in enumerate(steps):
            if step < own:
                layer = net(torch.full((3, 4), 0.1 * (1 + rank + 2 * step)))
                ((layer.relu() + layer).square().sum() / len(steps)).backward()
        optimiser.step()
    return [p.flatten().tolist() for p in net.parameters()]


def assert_close(seen: list[list[float]], expected: list[list[float]]) -> None:
    for one, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(wanted), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "compiler"),
    [
        pytest.param(
            "inagg+mcast",
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs g++ on PATH"),
            ],
        ),
        ("ring", "aot_eager"),  # all but the C++ compiler, which takes a minute
    ],
)
def test_a_compiled_ddp_trains_as_one_that_is_not(
    mechanism: str, compiler: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    # Compiled in the rank itself: a pool of compilers would cost more than the one layer that there is to compile.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    for compiled, plain, graphs, direct in seen_by_ranks(forks, fabric, tmp_path, mechanism, compiler, **environment):
        assert graphs >= 1
        assert_close(compiled, plain)
        assert_close(compiled, by_hand([3, 3]))
        assert direct == [5.0] * 3 + [6.0] * 3


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ranks_with_more_steps_than_others_join(
    mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    first, second = seen_by_ranks(forks, fabric, tmp_path, mechanism, "join")
    assert first == second  # Join gives all ranks the weights of one that was the last
    assert_close(first, by_hand([2, 4]))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_rank_that_does_not_come_is_an_error_after_the_timeout(
    mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    told, after_s = seen_by_ranks(forks, fabric, tmp_path, mechanism, "timeout")[0]
    assert "rank" in told
    assert 0.5 * TIMEOUT_S < after_s < 3 * TIMEOUT_S
