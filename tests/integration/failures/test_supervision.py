"""Switches that really die and really stall: the controller notices, brings them back, and the next job works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from emulation.switch.p4runtime.server import ARBITRATION_S
from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, Rejoin, join
from hostlib.system.process import start_and_wait_ready
from tests.conftest import ROOT, Fabric, controller, running_fabric

DEADLINE_S = 20.0
ELEMENTS = ("--elements", "64")
PROMPT_S = 10.0  # for a status: it gives a switch 3 s to answer, and a busy machine takes its time, too
RECOVERED_S = 10.0  # above what this machine takes to start a fabric


def sum_in_a_new_job(fabric: Fabric, job: str, stack: ExitStack) -> list[FabricSession]:
    """Two ranks join and sum, exactly; they leave when the test ends."""

    def one(rank: int) -> FabricSession:
        engine = Engine("127.0.0.1")
        address, ports = engine.address, engine.ports
        session = join(fabric.http, job, rank, 2, address, ports, DEADLINE_S, lambda: engine.position, patient=True)
        stack.callback(session.leave)
        configure(engine, session.place)
        tensor = np.arange(2000, dtype=np.int32) * (rank + 1)
        engine.allreduce(tensor, False, DEADLINE_S)
        assert np.array_equal(tensor, np.arange(2000, dtype=np.int32) * 3)
        return session

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def wait_until(fabric: Fabric, seconds: float, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first status that is so; every one on the way comes promptly."""
    give_up = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        status = fabric.status()
        if what(status):
            return status
        assert time.monotonic() < give_up, f"not within {seconds} s: {status}"
        assert time.monotonic() - asked < PROMPT_S
        time.sleep(0.05)


def restarts(status: dict[str, Any]) -> list[int]:
    return [switch["restarts"] for switch in status["switches"]]


def pid_of(fabric: Fabric, switch: str) -> int:
    return json.loads((fabric.state_dir / "controller.json").read_text())["processes"][switch]["pid"]


def refused_promptly(fabric: Fabric, says: str) -> None:
    asked = time.monotonic()
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000]}
    code, answer = fabric.call("POST", "/v1/jobs/meanwhile/ranks/0", body)
    assert (code, len(answer["detail"].splitlines())) == (503, 1), answer
    assert says in answer["detail"]
    assert time.monotonic() - asked < 1


def test_a_killed_switch_is_started_again_where_it_was(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric(*ELEMENTS)
    with ExitStack() as stack:
        old = sum_in_a_new_job(fabric, "before", stack)
        pid = pid_of(fabric, "switch")
        os.kill(pid, signal.SIGKILL)
        wait_until(fabric, 3, lambda status: not status["up"])
        refused_promptly(fabric, "switch")
        status = wait_until(fabric, 10, lambda status: status["up"])
        assert restarts(status) == [1] and pid_of(fabric, "switch") != pid
        assert "up, restarted 1x" in controller("status", "--state-dir", fabric.state_dir).stdout
        # The job's epoch is over, and its ranks need not care.
        assert status["jobs"] == []
        new = sum_in_a_new_job(fabric, "before", stack)
        assert new[0].place.epoch > old[0].place.epoch
        ends = [{(s.place.fabric_address, s.place.fabric_port) for s in sessions} for sessions in (old, new)]
        assert ends[0] == ends[1]


def test_a_stalled_switch_is_noticed_killed_and_started_again(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric(*ELEMENTS)
    with ExitStack() as stack:
        sum_in_a_new_job(fabric, "before", stack)
        pid = pid_of(fabric, "switch")
        # A short stall is nothing: the job goes on.
        os.kill(pid, signal.SIGSTOP)
        wait_until(fabric, 3.5, lambda status: not status["up"])
        os.kill(pid, signal.SIGCONT)
        status = wait_until(fabric, 3, lambda status: status["up"])
        assert (restarts(status), [job["name"] for job in status["jobs"]]) == ([0], ["before"])
        os.kill(pid, signal.SIGSTOP)
        wait_until(fabric, 3.5, lambda status: not status["up"])
        refused_promptly(fabric, "does not answer")
        # Its entries can no longer be removed: it is not taken back as it was.
        assert fabric.call("DELETE", "/v1/jobs/before")[0] == 200
        status = wait_until(fabric, 15, lambda status: status["up"])
        assert restarts(status) == [1] and pid_of(fabric, "switch") != pid
        assert not Path(f"/proc/{pid}").exists()
        sum_in_a_new_job(fabric, "after", stack)


def test_killed_switches_come_back_into_their_tree(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--racks", "2", "--ports", "1", *ELEMENTS)
    with ExitStack() as stack:
        sum_in_a_new_job(fabric, "before", stack)
        for switch in ("leaf0", "root"):
            os.kill(pid_of(fabric, switch), signal.SIGKILL)
        status = wait_until(fabric, 30, lambda status: status["up"] and sum(restarts(status)) >= 2)
        assert (restarts(status), status["jobs"]) == ([1, 1, 0], [])
        sum_in_a_new_job(fabric, "after", stack)
        root, *leaves = fabric.status()["switches"]
        chunks = 1 + -(-2000 // 64)
        assert root["events"]["completed"] == chunks and all(leaf["events"]["sent_up"] == chunks for leaf in leaves)


def test_a_port_that_was_taken_meanwhile_is_another_one_then(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--ports", "2", *ELEMENTS)
    with ExitStack() as stack:
        before = sum_in_a_new_job(fabric, "before", stack)
        taken = before[0].place
        os.kill(pid_of(fabric, "switch"), signal.SIGSTOP)
        # The dying switch's port goes to somebody else at once: the test takes it as soon as it is free.
        holder = subprocess.Popen([sys.executable, "-c", HOLD_PORT, taken.fabric_address, str(taken.fabric_port)])
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        os.kill(pid_of(fabric, "switch"), signal.SIGKILL)
        status = wait_until(fabric, 15, lambda status: status["up"] and restarts(status) == [1])
        assert status["switches"][0]["up"]
        after = sum_in_a_new_job(fabric, "after", stack)
        assert taken.fabric_port not in {session.place.fabric_port for session in after}


HOLD_PORT = """
import signal, socket, sys
held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        held.bind((sys.argv[1], int(sys.argv[2])))
        break
    except OSError:
        pass
signal.pause()
"""


@contextmanager
def running_switch(ready: Path, *ports: str) -> Iterator[dict[str, Any]]:
    """`emulation switch` as somebody else would run it; what its ready file says, with its process."""
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "emulation", "switch", "--udp-destination", "10.255.255.254:4793", *ports]
    child, described = start_and_wait_ready(
        [*command, "--ready-file", str(ready)], ready, ready.with_suffix(".log"), what="the switch", folder=ROOT
    )
    try:
        yield {**described, "process": child}
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_a_switch_of_somebody_else_is_waited_for(start_fabric: Callable[..., Fabric], tmp_path: Path) -> None:
    ready, ports_file = tmp_path / "ready.json", tmp_path / "ports.json"
    with ExitStack() as stack:
        switch = stack.enter_context(running_switch(ready, "--p4rt", "127.0.0.1:0", "--ports", "2"))
        ports_file.write_text(json.dumps(switch["ports"]))
        fabric = start_fabric("--p4rt", switch["p4rt"], "--switch-ports", str(ports_file), *ELEMENTS)
        sum_in_a_new_job(fabric, "before", stack)
        switch["process"].kill()
        wait_until(fabric, 3, lambda status: not status["up"])
        refused_promptly(fabric, "try again later")
        again = ["--p4rt", switch["p4rt"]]
        again += [word for number, where in switch["ports"].items() for word in ("--port", f"{number}=udp:{where}")]
        switch = stack.enter_context(running_switch(ready, *again))
        status = wait_until(fabric, 10, lambda status: status["up"])
        assert (restarts(status), status["jobs"]) == ([1], [])
        sum_in_a_new_job(fabric, "after", stack)
        # One that only stalled, for long, is pushed anew when it answers again: nobody knows what it missed.
        switch["process"].send_signal(signal.SIGSTOP)
        wait_until(fabric, 10, lambda status: not status["up"] and status["jobs"] == [])
        switch["process"].send_signal(signal.SIGCONT)
        status = wait_until(fabric, 10, lambda status: status["up"])
        assert restarts(status) == [2]
        sum_in_a_new_job(fabric, "after the stall", stack)


@contextmanager
def strangers(p4rt: str, count: int, election_id: int | None) -> Iterator[None]:
    """Other controllers' streams, which bid or say nothing."""
    ended = threading.Event()

    def requests() -> Iterator[p4runtime_pb2.StreamMessageRequest]:
        if election_id is not None:
            bid = p4runtime_pb2.StreamMessageRequest()
            bid.arbitration.device_id = 1
            high, low = election_id >> 64, election_id & (2**64 - 1)
            bid.arbitration.election_id.high, bid.arbitration.election_id.low = high, low
            yield bid
        ended.wait()

    with grpc.insecure_channel(p4rt) as channel:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
        streams = [stub.StreamChannel(requests()) for _ in range(count)]
        if election_id is not None:
            next(streams[0])
        yield
        ended.set()
        for stream in streams:
            stream.cancel()


def test_a_stranger_with_the_highest_election_id_loses_the_switch_again(start_fabric: Callable[..., Fabric]) -> None:
    fabric, start_s = timed(start_fabric)
    with ExitStack() as stack:
        sum_in_a_new_job(fabric, "before", stack)
        pid = pid_of(fabric, "switch")
        with strangers(fabric.status()["switches"][0]["p4rt"], 1, 2**128 - 1):
            wait_until(fabric, 3, lambda status: not status["up"])
            wait_until(fabric, RECOVERED_S + start_s, lambda status: status["up"])
        assert pid_of(fabric, "switch") != pid
        sum_in_a_new_job(fabric, "after", stack)


def test_a_stranger_with_a_higher_election_id_is_outbid(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric(*ELEMENTS)
    pid = pid_of(fabric, "switch")
    with strangers(fabric.status()["switches"][0]["p4rt"], 1, 2**100), ExitStack() as stack:
        wait_until(fabric, 3, lambda status: not status["up"])
        wait_until(fabric, 10, lambda status: status["up"])
        assert pid_of(fabric, "switch") == pid
        sum_in_a_new_job(fabric, "after", stack)


def test_idle_streams_keep_no_controller_out(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric(*ELEMENTS)
    p4rt = fabric.status()["switches"][0]["p4rt"]
    with strangers(p4rt, 30, None):
        time.sleep(ARBITRATION_S + 1)
        wait_until(fabric, 10, lambda status: status["up"])  # A busy machine may have missed a probe.
        with strangers(p4rt, 1, 2**100), ExitStack() as stack:
            wait_until(fabric, 10, lambda status: status["up"])
            sum_in_a_new_job(fabric, "after", stack)


def timed(start_fabric: Callable[..., Fabric]) -> tuple[Fabric, float]:
    """A fabric, and the seconds that this machine takes to start one."""
    began = time.monotonic()
    fabric = start_fabric(*ELEMENTS)
    return fabric, time.monotonic() - began


def kill_controller(fabric: Fabric) -> str:
    """The P4Runtime address of its switch, which lives on."""
    p4rt = str(fabric.status()["switches"][0]["p4rt"])
    os.kill(fabric.state["pid"], signal.SIGKILL)
    return p4rt


def test_a_kept_switch_that_a_stranger_holds_for_good_is_restarted(start_fabric: Callable[..., Fabric]) -> None:
    fabric, start_s = timed(start_fabric)
    pid = pid_of(fabric, "switch")
    killed = time.monotonic()
    with strangers(kill_controller(fabric), 1, 2**128 - 1), running_fabric(fabric.state_dir, *ELEMENTS) as again:
        assert time.monotonic() - killed < RECOVERED_S + start_s
        assert pid_of(again, "switch") != pid and again.status()["up"]
        with ExitStack() as stack:
            sum_in_a_new_job(again, "after", stack)


def test_a_kept_switch_full_of_idle_streams_is_taken_over_with_its_jobs(start_fabric: Callable[..., Fabric]) -> None:
    fabric, start_s = timed(start_fabric)
    pid = pid_of(fabric, "switch")
    with ExitStack() as stack:
        sum_in_a_new_job(fabric, "before", stack)
        stack.enter_context(strangers(kill_controller(fabric), 30, None))
        killed = time.monotonic()
        again = stack.enter_context(running_fabric(fabric.state_dir, *ELEMENTS))
        assert time.monotonic() - killed < RECOVERED_S + start_s
        assert pid_of(again, "switch") == pid
        assert [job["name"] for job in again.status()["jobs"]] == ["before"]
        sum_in_a_new_job(again, "after", stack)


def test_a_rank_that_gave_up_comes_back_to_those_that_have_their_places(start_fabric: Callable[..., Fabric]) -> None:
    """As one that was stopped while the others joined."""
    fabric = start_fabric(*ELEMENTS)
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        again = [Rejoin() for _ in range(2)]
        engines = [Engine("127.0.0.1") for _ in range(2)]

        def one(rank: int) -> FabricSession:
            address, ports = engines[rank].address, engines[rank].ports
            return join(fabric.http, "work.1", rank, 2, address, ports, DEADLINE_S, lambda: 0, again=again[rank])

        waits, gives_up = pool.map(one, range(2))
        stack.callback(waits.leave)
        gives_up.leave()
        came_back = one(1)
        stack.callback(came_back.leave)
        assert waits.alive() and came_back.alive()
        assert (came_back.place, came_back.token) == (gives_up.place, gives_up.token)
