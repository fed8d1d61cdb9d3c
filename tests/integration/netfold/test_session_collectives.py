"""A session's collectives but the all-reduce, between real processes, against numpy."""

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
DYING = Path(__file__).with_name("dying_ranks.py")
DIFFERING = Path(__file__).with_name("differing_ranks.py")
DYING_RANK = 1
PATIENCE_S = 240.0
ALL = {"reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "together"}
DONE = {
    "ring": ALL,
    "halving-doubling": {"reduce_scatter", "all_gather", "all_to_all", "together"},
    "butterfly": {"broadcast", "reduce", "all_to_all"},
    "tree": {"broadcast", "reduce"},
    "gloo": ALL,
    "inagg+mcast": {"reduce_scatter", "all_gather", "broadcast", "together"},
    "ring+mcast": ALL,
}
THROUGH_THE_SWITCH = ("inagg+mcast", "ring+mcast")


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


@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.crossed) for count in (3, 4)), 5])
def test_messages_give_numpys_values(forks: ForkServer, tmp_path: Path, count: int) -> None:
    names = [name for name in DONE if name not in THROUGH_THE_SWITCH]
    ranks = seen(forks, tmp_path, count, DEFAULT_CONTROLLER, *names)
    require_exact(ranks, *names)
    for rank in ranks:
        refused = rank["refused"]
        assert f"must have {count} times the 1 elements of a rank's shard, not {count + 1}" in refused["shards"]
        assert "dtypes must be the same, not torch.float32 and torch.int32" in refused["dtypes"]
        assert "unknown dtype 'torch.float64'" in refused["summed"]
        assert f"root must be in 0..{count - 1}, a rank, not {count}" in refused["root"]
        assert refused["list"] == "broadcast takes a torch.Tensor, not a list"
        assert refused["no rank"] == f"reduce: root must be in 0..{count - 1}, a rank, not -1"
        assert refused["no number"] == f"reduce: root must be in 0..{count - 1}, a rank, not '0'"
        assert "unknown dtype 'torch.float64'" in refused["reduced"]
        assert "unknown operation 'max'" in refused["operation"]
        assert refused["averaged"] == "torch.int32 tensors can be summed, not averaged"
        assert refused["whole shards"] == (
            f"all-to-all: the tensor must have a shard of the same size for each of the {count} ranks, and its "
            f"{count + 1} elements are no multiple of {count}"
        )


@pytest.mark.parametrize("mechanism", THROUGH_THE_SWITCH)
def test_the_switch_does_its_part(forks: ForkServer, fabric: Fabric, tmp_path: Path, mechanism: str) -> None:
    require_exact(seen(forks, tmp_path, 3, fabric.http, mechanism), mechanism)


@pytest.mark.parametrize("collective", ["reduce", "all_to_all"])
@pytest.mark.parametrize("mechanism", ["ring", "butterfly"])
def test_a_dead_rank_is_named_by_the_others(forks: ForkServer, tmp_path: Path, mechanism: str, collective: str) -> None:
    ranks = Ranks(forks, tmp_path, DYING, tmp_path, mechanism, collective, str(DYING_RANK), count=3)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    for rank in {0, 1, 2} - {DYING_RANK}:
        assert f"rank {DYING_RANK} is missing" in (tmp_path / f"rank{rank}.txt").read_text()


@pytest.mark.parametrize(
    ("collective", "says"),
    [
        ("reduce", "the ranks sum different tensors, of 99 and of 105 elements: nothing was summed"),
        ("all_to_all", "the ranks exchange different tensors, of 396 and of 420 bytes: nothing was exchanged"),
    ],
)
def test_tensors_that_differ_are_refused_on_all_ranks(
    forks: ForkServer, tmp_path: Path, collective: str, says: str
) -> None:
    ranks = Ranks(forks, tmp_path, DIFFERING, tmp_path, collective, count=3)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(3)] == [says] * 3
