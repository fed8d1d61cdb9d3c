"""Ranks of one host sum in shared memory, and one of each host goes on through the switch: one sum per host."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from controller.state_file import State
from hostlib.launch.fork_server import ForkServer
from tests.conftest import Fabric, running_fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("host_level_ranks.py")
PATIENCE_S = 100.0


def started(forks: ForkServer, fabric: Fabric, folder: Path, **environment: str) -> Ranks:
    environment |= {"NETFOLD_MECHANISM": "inagg+mcast:same_host=shm", "NETFOLD_CONTROLLER": fabric.http}
    return Ranks(forks, folder, SCRIPT, folder, fabric.http, count=4, **environment)


def ended(ranks: Ranks, folder: Path) -> list[Any]:
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(4)]


def test_one_sum_per_host_goes_through_the_switch(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    each = ended(started(forks, fabric, tmp_path), tmp_path)
    (job,) = each[0]["jobs"]
    assert job["world_size"] == 2
    for seen in each:
        assert seen["sums"] == seen["again"] == [True] * 3
        assert seen["bits"] == each[0]["bits"]
        assert "may not fit int32" in seen["overflow"]
    assert fabric.status()["jobs"] == []


def test_a_dead_switch_changes_no_sum(forks: ForkServer, tmp_path: Path) -> None:
    with running_fabric(tmp_path / "state") as fabric:
        ranks = started(forks, fabric, tmp_path, NETFOLD_TEST_KILLS="switch", NETFOLD_PATIENCE_S="2")
        give_up = time.monotonic() + PATIENCE_S
        while not (tmp_path / "ready").exists():
            assert ranks.poll() is None and time.monotonic() < give_up
            time.sleep(0.05)
        state = State.read(fabric.state_dir)
        assert state is not None
        os.kill(state.processes["switch"].pid, signal.SIGKILL)
        (tmp_path / "killed").touch()
        for seen in ended(ranks, tmp_path):
            assert seen["again"] == [True] * 3


def test_a_killed_rank_is_named_by_all(fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    ranks = started(forks, fabric, tmp_path, NETFOLD_TEST_KILLS="rank", NETFOLD_DEADLINE_S="6")
    give_up = time.monotonic() + PATIENCE_S
    while not all((tmp_path / f"rank{rank}.json").exists() for rank in range(3)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    ranks.kill()
    for rank in range(3):
        assert "rank 3 is missing" in json.loads((tmp_path / f"rank{rank}.json").read_text())["again"]
