"""Reduce-scatter, all-gather and broadcast of a session, between real processes, against numpy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric
from tests.forked import Ranks, loaded

SCRIPT = Path(__file__).with_name("collective_ranks.py")
PATIENCE_S = 240.0
DONE = {
    "ring": {"reduce_scatter", "all_gather", "broadcast", "together"},
    "halving-doubling": {"reduce_scatter", "all_gather", "together"},
    "butterfly": {"broadcast"},
    "tree": {"broadcast"},
    "gloo": {"reduce_scatter", "all_gather", "broadcast", "together"},
    "inagg+mcast": {"reduce_scatter", "all_gather", "broadcast", "together"},
}


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with loaded() as started:
        yield started


def seen(forks: ForkServer, folder: Path, count: int, controller: str, *mechanisms: str) -> list[dict[str, Any]]:
    """What each rank saw."""
    ranks = Ranks(forks, folder, SCRIPT, folder, controller, *mechanisms, count=count)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)]


def require_exact(ranks: list[dict[str, Any]], *mechanisms: str) -> None:
    for name in mechanisms:
        for rank in ranks:
            assert rank[name] == dict.fromkeys(DONE[name], 0), name
    for rank in ranks:
        assert rank["threads"] == ["MainThread"]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_messages_give_numpys_values(forks: ForkServer, tmp_path: Path, count: int) -> None:
    names = [name for name in DONE if name != "inagg+mcast"]
    ranks = seen(forks, tmp_path, count, DEFAULT_CONTROLLER, *names)
    require_exact(ranks, *names)
    for rank in ranks:
        refused = rank["refused"]
        assert f"must have {count} times the 1 elements of a rank's shard, not {count + 1}" in refused["shards"]
        assert "dtypes must be the same, not torch.float32 and torch.int32" in refused["dtypes"]
        assert "unknown dtype 'torch.float64'" in refused["summed"]
        assert f"root must be in 0..{count - 1}, a rank, not {count}" in refused["root"]
        assert refused["list"] == "broadcast takes a torch.Tensor, not a list"


def test_the_switch_multicasts_what_ranks_give(forks: ForkServer, fabric: Fabric, tmp_path: Path) -> None:
    require_exact(seen(forks, tmp_path, 3, fabric.http, "inagg+mcast"), "inagg+mcast")
