"""Callbacks of the torch backend's futures, which may begin collectives and wait for them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("callback_ranks.py")
PATIENCE_S = 100.0


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring", "gloo", "shm"])
def test_callbacks_begin_collectives_and_wait_for_them(
    mechanism: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    environment = {"NETFOLD_MECHANISM": mechanism, "NETFOLD_CONTROLLER": fabric.http, "NETFOLD_DEADLINE_S": "8"}
    ranks = Ranks(forks, tmp_path, SCRIPT, tmp_path, **environment)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    for seen in (first, second):
        # Four sums of 10 n and 10 n + 1 in each chain.
        assert seen["chains"] == [4 * (20.0 * number + 1) for number in range(5)]
        assert seen["ways"] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
        assert seen["completed"] == list(range(50))
        assert seen["weights"] == [True, True, True]
    assert len(first["order"]) == 40
    # Callbacks of one depth begin, and end, in the order of their sums. Whether one ends before the next begins depends
    # on when the script begins the sums.
    for seen in (first, second):
        for depth, what in itertools.product(range(4), ("begins", "ends")):
            in_order = [f"{chain}.{depth} {what}" for chain in range(5)]
            assert [each for each in seen["order"] if each in in_order] == in_order
    assert "no error" not in first["missing"]
    if mechanism == "inagg+mcast":
        assert "rank 1 is alive but did not join all-reduce" in first["missing"]
    assert 7 < first["waited"] < 30
