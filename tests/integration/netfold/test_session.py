"""netfold.session, as a user's own script meets it under torchrun."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import netfold
from hostlib.launch.fork_server import ForkServer
from tests.conftest import ROOT
from tests.forked import Ranks, loaded
from tests.training_runs import trained

SCRIPT = Path(__file__).with_name("session_ranks.py")
PATIENCE_S = 100.0


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with loaded() as started:
        yield started


def ended(forks: ForkServer, folder: Path, script: Path, *arguments: Path) -> None:
    """Two ranks, to their good end."""
    ranks = Ranks(forks, folder, script, *arguments)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors


@pytest.fixture(scope="module")
def seen(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    ended(forks, folder, SCRIPT, folder)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_sum_and_average(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["sum"] == [3.0 * (i % 7) for i in range(1000)]
        assert rank["int32"] == [3] * 3
        assert rank["result"] == [0.5] * 5
        assert rank["group is gone"]


def test_sessions_follow_each_other_whatever_became_of_the_last(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["error"] == "the script's own"
        assert rank["group is gone after an error"]


def test_a_group_of_the_callers_own_stays(seen: list[dict[str, Any]]) -> None:
    assert [rank["twice"] for rank in seen] == [[6.0] * 5] * 2


def test_what_cannot_be_summed_is_refused(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["op"] == "unknown operation 'max'; legal are avg, sum"
        assert "unknown dtype 'torch.float64'; legal are" in rank["float64"]
        assert "sums dense tensors, not torch.sparse_coo" in rank["sparse"]
        assert "gradients: backend netfold sums dense tensors, not torch.sparse_coo" in rank["sparse gradients"]
        assert rank["list"] == "all-reduce: backend netfold sums a torch.Tensor, not a list"
        assert "sums no tensors with the negative bit: use .resolve_neg()" in rank["negative"]
        assert "sums no tensors whose elements share memory: use .contiguous()" in rank["overlap"]
        assert rank["after refusals"] == [2.0, 2.0]


def test_the_address_is_one_of_this_hosts() -> None:
    line = "address: no interface of this host has the IPv4 address 8.8.8.8"
    with pytest.raises(netfold.RunError, match=line), netfold.session("ring", address="8.8.8.8"):
        pass


def test_the_hook_trains_to_the_bits_of_the_command(seen: list[dict[str, Any]]) -> None:
    result = trained("--mechanism", "ring", "--workers", "2", "--iterations", "3")
    assert [rank["weights_sha256"] for rank in seen] == result["weights_sha256"]


def test_a_report_says_what_was_done(seen: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(seen):
        sums, steps = rank["report of sums"], rank["report of steps"]
        for report in (sums, steps):
            assert (report["mechanism"], report["rank"], report["world_size"]) == ("ring", number, 2)
            assert (report["fabric_failures"], report["engine"]) == ([], None)
        assert (sums["sums"], sums["steps"], sums["buckets"], sums["overlap"]) == (5, 0, [], None)
        assert sums["sum_ms_median"] > 0
        assert (steps["sums"], steps["steps"], steps["sum_ms_median"]) == (0, 3, None)
        assert [bucket["bucket"] for bucket in steps["buckets"]] == list(range(len(steps["buckets"]))) != []
        assert sum(bucket["size_bytes"] for bucket in steps["buckets"]) == 4 * 31294
        assert all(bucket["ms_median"] > 0 for bucket in steps["buckets"])
        assert steps["communication_ms_median"] > 0 and steps["exposed_ms_median"] >= 0


def examples() -> list[str]:
    page = (ROOT / "docs" / "api.md").read_text()
    return re.findall(r"<!-- run by tests/integration/netfold/test_session.py -->\n```python\n(.*?)```", page, re.S)


def test_the_pages_example_runs(forks: ForkServer, tmp_path: Path) -> None:
    (example,) = examples()
    script = tmp_path / "example.py"
    script.write_text(example)
    ended(forks, tmp_path, script)
