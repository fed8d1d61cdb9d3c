"""Tensors on a device, through the torch backend: bit for bit what the host makes of them, whatever is not yet computed.

The device is tests/threaded_device.py's, which needs no GPU; tests/cuda/ has the real one.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Fabric
from tests.device_run import PATIENCE_S, SCRIPT, ended, wait_for
from tests.forked import Ranks, loaded


@pytest.fixture(scope="module")
def start(fabric: Fabric) -> Iterator[Callable[..., Ranks]]:
    """Two ranks: a folder, a mode, and what else is in their environment."""
    with loaded() as forks:

        def ranks(folder: Path, mode: str, **environment: str) -> Ranks:
            return Ranks(forks, folder, SCRIPT, folder, mode, NETFOLD_CONTROLLER=fabric.http, **environment)

        yield ranks


@pytest.mark.parametrize(("mechanism", "lanes"), [("inagg+mcast", "2"), ("ring", "1"), ("gloo", "1"), ("shm", "1")])
def test_a_device_sums_as_the_host_does(
    mechanism: str, lanes: str, fabric: Fabric, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    run = start(tmp_path, "all", NETFOLD_MECHANISM=mechanism, NETFOLD_LANES=lanes)
    for rank, seen in enumerate(ended(run, tmp_path)):
        assert [what for what, same in seen["same"].items() if not same] == []
        assert seen["early"] == [False] * 3
        assert seen["late"] == [3.0, 3.0, 1.5] * 2
        if mechanism == "inagg+mcast":
            assert "may not fit int32" in seen["refused"]
            # Of each dtype's sizes 1, 5000, 150001 and 5001, and of the two with special values: pieces of 16384 words.
            assert seen["launched"] == {"block_codes": 14, "quantise": 3 * 13 + 8, "dequantise": 3 * 13 + 8}
        else:
            assert seen["launched"] == {}
        assert seen["dtype"] == [2.0, 2.0]
        assert seen["coalesced"] == [[1.0] * 3, [], [1.0] * 2]
        assert seen["share"] == [[0.0, 1.5], [3.0, 4.5]][rank]
        assert seen["alone"] == [rank + 1.0] * 5
        assert seen["passed"] == [2.0 - rank] * 3
        assert seen["ddp"] == seen["fsdp"] == [4.5] * 8
    assert fabric.status()["jobs"] == []


def test_a_dead_switch_changes_no_bit(fabric: Fabric, start: Callable[..., Ranks], tmp_path: Path) -> None:
    run = start(tmp_path, "failover")
    wait_for(run, tmp_path / "begun0", tmp_path / "begun1")
    os.kill(fabric.state["processes"]["switch"]["pid"], signal.SIGKILL)
    for seen in ended(run, tmp_path):
        assert seen["mismatches"] == 0 < seen["rounds"]
        assert seen["failures"][0]["by_hosts"] > 0 and seen["failures"][0]["returned"]


def test_a_stopped_rank_is_named_by_those_that_wait_for_its_codes(start: Callable[..., Ranks], tmp_path: Path) -> None:
    run = start(tmp_path, "missing", NETFOLD_DEADLINE_S="3")
    report, stopped = tmp_path / "rank0.json", tmp_path / "stopped"
    try:
        wait_for(run, report, stopped)
        assert "rank 1 is missing: no sign of life" in json.loads(report.read_text())["missing"]
    finally:
        if stopped.exists():
            os.kill(int(stopped.read_text()), signal.SIGKILL)
        run.communicate(timeout=PATIENCE_S)
