"""`hostlib doctor`: what it finds with a fabric, without one, and where a rank stalls."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hostlib.bench import checkup
from tests.conftest import ROOT, Fabric

NOBODY = "http://127.0.0.1:9"
STALLS_S = 2.5


def examined(*options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the checks by name."""
    command = [sys.executable, "-m", "hostlib", "doctor", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)}


def test_without_a_controller_it_fails_and_says_what_to_do() -> None:
    code, checks = examined("--controller", NOBODY)
    assert code == 1
    assert checks["controller"]["state"] == "fail"
    assert NOBODY in checks["controller"]["found"]
    assert checks["controller"]["remedy"].startswith("controller start")
    # 256 elements, and headers of IPv4, UDP and the protocol.
    assert checks["MTU of lo"]["found"].endswith("1084 needed")
    assert {check["state"] for name, check in checks.items() if name != "controller"} <= {"ok", "warn"}
    assert {"socket buffer rmem_max", "socket buffer wmem_max", "UDP GSO and GRO", "cores"} <= checks.keys()


def test_a_line_for_each_check() -> None:
    command = [sys.executable, "-m", "hostlib", "doctor", "--controller", NOBODY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)
    assert lines[-1].startswith(f"fail controller: no controller answers at {NOBODY}")


@contextmanager
def beating(beat: Callable[[], object]) -> Iterator[None]:
    """Heartbeats, however long the block takes."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(STALLS_S / 10):
            beat()

    beat()
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_fabric_its_jobs_and_the_rank_that_stalls(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric()
    code, checks = examined("--controller", fabric.http)
    assert code == 0, checks
    assert checks["switch switch"]["state"] == "ok"
    assert checks["jobs"]["found"] == "none"

    def join(rank: int) -> None:
        request = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000 + rank]}
        assert fabric.call("POST", f"/v1/jobs/demo/ranks/{rank}", request)[0] == 200

    def beat(rank: int, position: int) -> None:
        assert fabric.call("POST", f"/v1/jobs/demo/ranks/{rank}/heartbeat", {"position": position})[0] == 200

    def ranks(patience_s: float) -> tuple[int, list[dict[str, Any]]]:
        code, checks = examined("--controller", fabric.http, "--deadline", str(patience_s))
        return code, [next(c for name, c in checks.items() if name.startswith(f"job demo, rank {r} ")) for r in (0, 1)]

    join(0)
    assert examined("--controller", fabric.http)[1]["job demo"]["found"] == "waits for rank 1"
    join(1)
    beat(0, 40)
    beat(1, 40)
    code, (first, second) = ranks(60)
    assert (code, first["state"], second["state"]) == (0, "ok", "ok")
    assert second["found"].startswith("slot position 40, joined, last heartbeat ")

    time.sleep(STALLS_S)
    with beating(lambda: (beat(0, 74), beat(1, 40))):
        code, (first, second) = ranks(STALLS_S)
    assert (code, first["state"], second["state"]) == (1, "ok", "fail")
    assert second["found"].startswith("slot position 40, 34 behind, joined, last heartbeat ")
    assert "the others wait for it" in second["remedy"]


@pytest.mark.parametrize(
    ("fields", "state", "remedy"),
    [
        ({"last_heartbeat_s": 16.0}, "fail", "dead, stopped, or cut off"),
        ({"state": "lost", "last_heartbeat_s": 31.0}, "fail", "dead, stopped, or cut off"),
        ({"position": 7, "last_progress_s": 16.0}, "fail", "the others wait for it"),
        ({"position": 7}, "ok", ""),
        ({"last_progress_s": 600.0}, "ok", ""),
        ({"state": "left", "last_heartbeat_s": 600.0}, "ok", ""),
    ],
)
def test_what_counts_as_stalled(fields: dict[str, Any], state: str, remedy: str) -> None:
    rank = {"rank": 0, "address": "127.0.0.1:5000", "position": 10, "state": "joined"}
    rank |= {"last_heartbeat_s": 1.0, "last_progress_s": 1.0}
    other = {**rank, "rank": 1, "address": "127.0.0.1:5001"}
    job = {"name": "demo", "state": "ready", "world_size": 2, "ranks": [{**rank, **fields}, other]}
    _, check, _ = checkup._job(job, patience_s=15.0)
    assert check.state == state
    assert remedy in check.remedy


def test_a_small_mtu_and_small_buffers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "mtu_of", lambda interface: 1000)
    monkeypatch.setattr(checkup, "offload", lambda interface, command: command != checkup.ETHTOOL_GGRO)
    monkeypatch.setattr(checkup, "BUFFER_BYTES", 1 << 40)
    checks = {check.name: check for check in checkup.host("127.0.0.1", 256)}
    assert (checks["MTU of lo"].state, checks["offloads of lo"].state) == ("fail", "warn")
    assert checks["MTU of lo"].remedy == "ip link set lo mtu 1500, or controller start with fewer --elements"
    (wide,) = (check for check in checkup.host("127.0.0.1", 2048) if check.name == "MTU of lo")
    assert (wide.found, wide.remedy.partition(",")[0]) == ("1000 bytes, 8252 needed", "ip link set lo mtu 9000")
    assert checks["offloads of lo"].remedy == "ethtool -K lo gro on: fewer system calls"
    assert checks["socket buffer rmem_max"].remedy.startswith(f"sysctl -w net.core.rmem_max={1 << 40}")
