"""Ranks that sum different tensors all get an error: neither wrong numbers nor a wait for the deadline."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("differing_ranks.py")
PATIENCE_S = 100.0


@pytest.mark.parametrize("difference", ["length", "dtype", "average"])
@pytest.mark.parametrize(
    ("mechanism", "lanes"), [("inagg+mcast", "1"), ("inagg+mcast", "3"), ("ring", "1"), ("gloo", "1"), ("shm", "1")]
)
def test_different_tensors_are_an_error_on_all_ranks(
    mechanism: str, lanes: str, difference: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    environment = {"NETFOLD_MECHANISM": mechanism, "NETFOLD_LANES": lanes, "NETFOLD_CONTROLLER": fabric.http}
    begun = time.monotonic()
    ranks = Ranks(forks, tmp_path, SCRIPT, tmp_path, difference, **environment)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert time.monotonic() - begun < 60
    for rank in range(2):
        (first, second), value = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert "the ranks sum" in first and "nothing was summed" in first
        assert second == first  # The group is out of step for good.
        assert value == 1.0
