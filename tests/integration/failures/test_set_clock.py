"""The clock is set, by an hour, under a controller, its switch and ranks at work: nobody minds."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from controller.events.event_log import FLOOD_EVENTS, FLOOD_S
from controller.jobs.job_table import SHORTEST_LEASE_S
from controller.state_file import State
from tests.chaos.killed_jobs import Forks, KilledJob, forks
from tests.chaos.member import Membership
from tests.conftest import ROOT, Fabric, controller, running_fabric

SOURCE = ROOT / "tests/data/set_clock.c"
HOUR_S = 3600
LEASE = ("--lease", f"{SHORTEST_LEASE_S}s")
JOB = "training"


@dataclass
class Clock:
    """The clock of whatever is started meanwhile."""

    library: Path
    file: Path

    def set(self, ahead_s: int) -> None:
        """So far ahead of this process's."""
        with self.file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", ahead_s * 10**9))

    def require_used_by(self, *pids: int) -> None:
        for pid in pids:
            assert str(self.library) in Path(f"/proc/{pid}/maps").read_text(), f"{pid} has the machine's own clock"


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clock]:
    folder = tmp_path_factory.mktemp("clock")
    made = Clock(folder / "set_clock.so", folder / "ahead")
    command = [
        "g++",
        "-xc",
        "-O1",
        "-Wall",
        "-Wextra",
        "-shared",
        "-fPIC",
        "-o",
        str(made.library),
        str(SOURCE),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    made.file.write_bytes(bytes(8))
    with mock.patch.dict(os.environ, {"LD_PRELOAD": str(made.library), "SET_CLOCK_FILE": str(made.file)}):
        yield made


@pytest.fixture(scope="module")
def ranks(clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("ranks")) as made:
        yield made


def epoch_of_next_job(fabric: Fabric, job: str) -> int:
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000], "slots": 16}
    code, answer = fabric.call("POST", f"/v1/jobs/{job}/ranks/0", body)
    assert (code, answer["state"]) == (200, "ready"), answer
    assert fabric.call("DELETE", f"/v1/jobs/{job}/ranks/0")[0] == 200
    return int(answer["epoch"])


def refuse_many(fabric: Fabric) -> None:
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000]}
    for _ in range(FLOOD_EVENTS + 5):
        assert fabric.call("POST", "/v1/jobs/none/ranks/5", body)[0] == 422


def events(fabric: Fabric) -> list[dict[str, Any]]:
    return list(fabric.call("GET", "/v1/events?most=1000")[1]["events"])


def positions(fabric: Fabric, job: str) -> list[int]:
    """Of its ranks, none of which is lost."""
    code, found = fabric.call("GET", f"/v1/jobs/{job}")
    assert code == 200, found
    assert {rank["state"] for rank in found["ranks"]} == {"joined"}
    return [rank["position"] for rank in found["ranks"]]


@pytest.mark.parametrize(
    "ahead_s", [pytest.param(-HOUR_S, id="back"), pytest.param(HOUR_S, id="forward", marks=pytest.mark.crossed)]
)
@pytest.mark.timeout(240)
def test_no_job_minds_that_the_clock_is_set_by_an_hour(
    clock: Clock, ranks: Forks, ahead_s: int, tmp_path: Path
) -> None:
    clock.set(0)
    with running_fabric(tmp_path / "state", *LEASE) as fabric, ExitStack() as stack:
        state = State.read(fabric.state_dir)
        assert state is not None
        run = KilledJob(ranks, ahead_s, "", Membership(fabric.http, JOB, 16, 4096, 1))
        stack.callback(run.close)
        run.wait_for_step(1)
        clock.require_used_by(state.controller.pid, state.processes["switch"].pid, *run.pids)
        epochs, before = [epoch_of_next_job(fabric, "before")], positions(fabric, JOB)
        refuse_many(fabric)

        clock.set(ahead_s)
        assert abs(fabric.status()["time_s"] - time.time() - ahead_s) < 60
        epochs.append(epoch_of_next_job(fabric, "after"))
        time.sleep(max(SHORTEST_LEASE_S, FLOOD_S) + 3)  # whoever is not heard for so long is lost
        assert all(now > then for now, then in zip(positions(fabric, JOB), before, strict=True))
        refuse_many(fabric)
        assert [event["kind"] for event in events(fabric)].count("join-refused") > FLOOD_EVENTS

        # One that starts now takes the job over, and goes on with its epochs and events.
        os.kill(state.controller.pid, signal.SIGKILL)
        assert state.controller.gone_within(10)
        again = stack.enter_context(running_fabric(fabric.state_dir, *LEASE))
        epochs.append(epoch_of_next_job(again, "again"))
        clock.set(0)
        epochs.append(epoch_of_next_job(again, "set-right"))
        assert epochs == sorted(set(epochs))
        assert positions(again, JOB)
        require_readable(again, ahead_s)
        run.wait_for_step(max(run.steps()) + 2)
        for rank in range(2):
            run.kill(rank)


def require_readable(fabric: Fabric, ahead_s: int) -> None:
    """The log and the history have everything in its order, with the times that the clock said."""
    logged = events(fabric)
    assert [event["id"] for event in logged] == list(range(1, len(logged) + 1))
    assert not {event["kind"] for event in logged} & {"switch-down", "rank-lost"}
    assert {round((event["time_s"] - time.time()) / HOUR_S) for event in logged} == {0, ahead_s // HOUR_S}
    lines = (fabric.state_dir / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [event["id"] for event in logged]
    for words in (["events"], ["jobs", "--ended"], ["jobs"], ["status"], ["doctor"]):
        shown = controller(*words, "--state-dir", fabric.state_dir)
        assert shown.returncode == 0 and not shown.stderr, shown.stderr
