"""A state folder on a disk that is really full: a small file system, filled by dd."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.jobs.job_table import SHORTEST_LEASE_S
from controller.state_file import State
from hostlib.fabric.job_client import HEARTBEAT_S
from tests.chaos.switch_entries import entries_of
from tests.chaos.training import TrainingRun
from tests.conftest import Fabric, controller, running_fabric

SIZE = "700k"
RECOVERED_S = 20.0  # on a busy machine; docs/failures.md says how long it takes on another
LONG = ("--workers", "2", "--deadline", "10", "--epochs", "5000")
JOINING = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000], "slots": 16}
FULL = r"the controller's state /\S+ cannot be written: (database or disk is full|No space left on device)"
HEALTH = "the disk with the controller's state is full: make room"


class SmallDisk:
    """A folder on a file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """With nothing of it left, not even for one more block."""
        done = subprocess.run(
            ["dd", "if=/dev/zero", f"of={self.folder}/filler", "bs=4k"], capture_output=True, text=True, timeout=60
        )
        assert "No space left on device" in done.stderr
        assert os.statvfs(self.folder).f_bavail == 0

    def make_room(self) -> None:
        (self.folder / "filler").unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", folder], check=True, timeout=20)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "state") as made:
        yield made


def wait_for(what: Callable[[], bool]) -> None:
    give_up = time.monotonic() + RECOVERED_S
    while not what():
        assert time.monotonic() < give_up, f"not within {RECOVERED_S} s"
        time.sleep(0.02)


def require_refused(fabric: Fabric) -> None:
    """Whatever would have to be written is refused, in one line each, and leaves nothing behind."""
    before, jobs, slots = entries_of(fabric), names(fabric), fabric.call("GET", "/v1/slots")
    for method, path, body in (
        ("POST", "/v1/jobs/whole/ranks/0", JOINING),  # complete at once: its entries would be installed
        ("POST", "/v1/jobs/first/ranks/0", {**JOINING, "world_size": 2}),
        ("POST", "/v1/switches/switch/drain", None),
    ):
        code, answer = fabric.call(method, path, body)
        assert code == 503 and re.fullmatch(FULL, answer["detail"]), f"{method} {path}: {answer}"
    assert fabric.status()["switches"][0]["draining"] is False
    assert (entries_of(fabric), names(fabric), fabric.call("GET", "/v1/slots")) == (before, jobs, slots)


def names(fabric: Fabric) -> list[str]:
    return [job["name"] for job in fabric.call("GET", "/v1/jobs")[1]["jobs"]]


def ranks_of(fabric: Fabric, job: str) -> list[dict[str, Any]]:
    code, found = fabric.call("GET", f"/v1/jobs/{job}")
    assert code == 200, found
    return list(found["ranks"])


@pytest.fixture
def run_on() -> Iterator[Callable[[Fabric], TrainingRun]]:
    """Start a training that would take very long."""
    with ExitStack() as started:

        def start(fabric: Fabric) -> TrainingRun:
            run = TrainingRun.start("--mechanism", "inagg+mcast", *LONG, "--controller", fabric.http)
            started.callback(run.stop)
            run.wait_for_step()
            return run

        yield start


@pytest.mark.root
def test_a_full_disk_refuses_joins_and_disturbs_no_job(
    disk: SmallDisk, run_on: Callable[[Fabric], TrainingRun]
) -> None:
    with running_fabric(disk.folder, "--lease", f"{SHORTEST_LEASE_S}s") as fabric:
        run = run_on(fabric)
        (job,) = names(fabric)
        disk.fill()
        assert fabric.call("GET", "/health") == (503, {"detail": HEALTH})  # before anybody has wanted anything
        began = time.monotonic()
        while time.monotonic() < began + SHORTEST_LEASE_S + 3:  # who is not heard for so long is lost
            positions = [rank["position"] for rank in ranks_of(fabric, job)]
            require_refused(fabric)
            time.sleep(HEARTBEAT_S + 1)
            for rank, position in zip(ranks_of(fabric, job), positions, strict=True):
                assert rank["state"] == "joined" and rank["position"] > position
        told = controller("doctor", "--state-dir", disk.folder)
        assert "make space" in told.stdout
        token = controller("token", "create", "vision", "--state-dir", disk.folder)
        assert token.returncode == 1 and re.fullmatch(f"error: {FULL}\n", token.stderr)

        disk.make_room()
        require_back(fabric)
        assert names(fabric) == [job] and run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        assert run.end(within_s=15) == 130
        kinds = {event["kind"] for event in fabric.call("GET", "/v1/events?most=1000")[1]["events"]}
        assert not kinds & {"switch-down", "rank-lost"}
    whole = [json.loads(line) for line in (disk.folder / "events.jsonl").read_text().splitlines()]
    assert whole[-1]["kind"] == "controller-stopped"


@pytest.mark.root
def test_a_switch_that_dies_while_the_disk_is_full_is_back_once_there_is_room(disk: SmallDisk) -> None:
    with running_fabric(disk.folder, "--ports", "2") as fabric:
        disk.fill()
        os.kill(fabric.state["processes"]["switch"]["pid"], signal.SIGKILL)
        wait_for(lambda: not fabric.status()["up"])
        code, answer = fabric.call("POST", "/v1/jobs/whole/ranks/0", JOINING)
        assert code == 503 and len(answer["detail"].splitlines()) == 1
        time.sleep(3)  # it is tried meanwhile
        disk.make_room()
        require_back(fabric)
        state = State.read(disk.folder)
        assert state is not None and state.processes["switch"].alive  # the next controller would find it


@pytest.mark.root
def test_a_controller_does_not_start_on_a_full_disk_and_says_so(disk: SmallDisk) -> None:
    disk.fill()
    done = controller("start", "--http", "127.0.0.1:0", "--state-dir", disk.folder)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"error: the disk with {disk.folder} is full: make room")
    disk.make_room()
    with running_fabric(disk.folder, "--ports", "2") as fabric:
        require_back(fabric)


def require_back(fabric: Fabric) -> None:
    """It says that all is well, and a job is admitted and ends."""
    wait_for(lambda: fabric.call("GET", "/health") == (200, {"status": "ok"}))
    code, answer = fabric.call("POST", "/v1/jobs/after/ranks/0", JOINING)
    assert (code, answer["state"]) == (200, "ready"), answer
    assert fabric.call("DELETE", "/v1/jobs/after/ranks/0")[0] == 200
