"""A primary and its standby, really killed and really stopped: the standby takes over, and no job is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from controller.state_file import STATE_FILE, State
from controller.state_store import STATE_STORE
from hostlib._engine import Engine
from hostlib.errors import JoinError
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, join, require_controller
from hostlib.system.interrupts import EXIT_CODE
from hostlib.system.process import start, start_and_wait_ready
from tests.chaos.training import PATIENCE_S, TrainingRun
from tests.conftest import ROOT, controller, stop_fabric
from tests.training_runs import trained

SHORT = ("--elements", "64", "--ports", "4")
SILENCE_S = 3.0  # instead of 5; less, and a busy machine deposes who is only slow
TAKEN_OVER_S = 30.0  # of which a busy machine takes most
DEADLINE_S = 30.0


class Controllers:
    """Controllers of one state directory, and their processes by address."""

    def __init__(self, state_dir: Path, stack: ExitStack) -> None:
        self.state_dir = state_dir
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = stack

    def start(self, *options: str, standby: bool = True) -> str:
        """One more, which is the primary if there is none; its address."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        log = self.state_dir / f"{len(self.processes)}.log"
        words = ["--foreground", "--http", "127.0.0.1:0", "--state-dir", str(self.state_dir), *options]
        if standby:
            words += ["--standby", "--primary-silence", f"{SILENCE_S}s"]
        command = [sys.executable, "-m", "controller", "start", *words]
        ready = self.state_dir / STATE_FILE
        if not self.processes:
            child, described = start_and_wait_ready(
                command, ready, log, what="the controller", dies_by=None, folder=ROOT
            )
        else:
            starting = start(command, ready, log, what="the standby", dies_by=None, folder=ROOT)
            child = starting.child
            described = replace(starting, ready=self.state_dir / f"standby-{child.pid}.json").wait()
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)
        self.processes[described["http"]] = child
        return str(described["http"])

    @property
    def addresses(self) -> str:
        return ",".join(self.processes)

    def signal(self, http: str, number: signal.Signals) -> None:
        self.processes[http].send_signal(number)

    def state(self) -> State:
        state = State.read(self.state_dir)
        assert state is not None
        return state

    def clean(self) -> bool:
        """Whether the switches have the entries of the jobs that are recorded, and no others."""
        with contextlib.closing(sqlite3.connect(self.state_dir / STATE_STORE)) as database:
            ((value,),) = database.execute("SELECT value FROM facts WHERE name = 'clean'")
        return bool(json.loads(value))

    def events(self) -> list[tuple[str, str]]:
        lines = (self.state_dir / "events.jsonl").read_text().splitlines()
        return [(event["kind"], event["text"]) for event in map(json.loads, lines)]


@contextmanager
def controllers_in(state_dir: Path) -> Iterator[Controllers]:
    with ExitStack() as stack:
        stack.callback(stop_fabric, state_dir)
        yield Controllers(state_dir, stack)


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    with controllers_in(tmp_path / "state") as found:
        yield found


def get(http: str, path: str) -> httpx.Response:
    return httpx.get(http + path, timeout=10)


def is_primary(http: str) -> bool:
    try:
        return get(http, "/v1").status_code == 200
    except httpx.HTTPError:
        return False


def wait_until(so: Callable[[], bool], within_s: float) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not so():
        assert time.monotonic() - began < within_s
        time.sleep(0.02)
    return time.monotonic() - began


class Pair:
    """Two ranks in a job, which sum when they are told to."""

    def __init__(self, addresses: str, job: str) -> None:
        self.engines = [Engine("127.0.0.1") for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            self.sessions: list[FabricSession] = list(pool.map(lambda rank: self._join(addresses, job, rank), range(2)))

    def _join(self, addresses: str, job: str, rank: int) -> FabricSession:
        engine = self.engines[rank]
        address, ports = engine.address, engine.ports
        session = join(addresses, job, rank, 2, address, ports, DEADLINE_S, lambda: engine.position)
        configure(engine, session.place)
        return session

    def sum(self) -> None:
        """Through the switch, exactly."""

        def one(rank: int) -> None:
            tensor = np.arange(2000, dtype=np.int32) * (rank + 1)
            self.engines[rank].allreduce(tensor, False, DEADLINE_S)
            assert np.array_equal(tensor, np.arange(2000, dtype=np.int32) * 3)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, range(2)))

    def leave(self) -> None:
        for session in self.sessions:
            session.leave()


def jobs(http: str) -> list[Any]:
    return [(job["name"], job["state"]) for job in get(http, "/v1/jobs").json()["jobs"]]


def test_a_standby_takes_over_from_a_killed_primary_while_a_job_trains(
    controllers: Controllers, tmp_path: Path
) -> None:
    first, second = controllers.start(), controllers.start()
    options = ("--mechanism", "inagg+mcast", "--workers", "2", "--epochs", "16")
    path = tmp_path / "result.json"
    # The standby is named first: ranks find the primary.
    run = TrainingRun.start(*options, "--controller", f"{second},{first}", "--output", str(path))
    try:
        run.wait_for_step()
        state = controllers.state()
        controllers.signal(first, signal.SIGKILL)
        wait_until(lambda: is_primary(second), TAKEN_OVER_S)
        assert [state for _, state in jobs(second)] == ["ready"], "it was there, and still is"
        assert run.end(PATIENCE_S) == 0, run.output
    finally:
        run.stop()
    result = json.loads(path.read_text())
    assert result["fabric_failures"] == [[], []]
    assert jobs(second) == [], "its ranks could leave"
    assert any(text.endswith(" started and took over 1 jobs") for _, text in controllers.events())
    assert controllers.state().processes == state.processes
    # A third one is a standby again; and without its neighbours, a run ends with the same weights.
    third = controllers.start()
    assert get(third, "/health").json() == {"status": "standby", "primary": second}
    assert trained(*options, "--controller", second)["weights_sha256"] == result["weights_sha256"]


@pytest.mark.parametrize("stopped_s", [6.0, pytest.param(40.0, marks=(pytest.mark.slow, pytest.mark.crossed))])
def test_a_primary_that_was_stopped_comes_back_as_a_standby(stopped_s: float, controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    pair = Pair(controllers.addresses, "before")
    pair.sum()
    pid = controllers.state().processes["switch"].pid
    controllers.signal(first, signal.SIGSTOP)
    stopped = time.monotonic()
    wait_until(lambda: is_primary(second), SILENCE_S + TAKEN_OVER_S)
    assert jobs(second) == [("before", "ready")]
    pair.sum()
    meanwhile = Pair(controllers.addresses, "meanwhile")
    time.sleep(max(0.0, stopped + stopped_s - time.monotonic()))
    controllers.signal(first, signal.SIGCONT)
    # From its first answer on.
    answer = get(first, "/v1/jobs")
    assert answer.status_code == 503
    assert answer.json()["detail"] == f"this controller is a standby: the primary is {second}"
    wait_until(lambda: get(first, "/health").json() == {"status": "standby", "primary": second}, TAKEN_OVER_S)
    pair.sum()
    meanwhile.sum()
    assert jobs(second) == [("before", "ready"), ("meanwhile", "ready")]
    (switch,) = get(second, "/v1/status").json()["switches"]
    assert (switch["up"], switch["restarts"]) == (True, 0)
    assert controllers.state().processes["switch"].pid == pid
    assert "switch-down" not in [kind for kind, _ in controllers.events()]
    # And back: it takes over in its turn.
    controllers.signal(second, signal.SIGKILL)
    wait_until(lambda: is_primary(first), TAKEN_OVER_S)
    assert jobs(first) == [("before", "ready"), ("meanwhile", "ready")]
    pair.leave()
    assert jobs(first) == [("meanwhile", "ready")]
    meanwhile.sum()
    meanwhile.leave()


def test_a_primary_that_dies_while_it_writes_to_a_switch_costs_no_job(controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    before = Pair(controllers.addresses, "before")
    switch = controllers.state().processes["switch"]
    os.kill(switch.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(Pair, controllers.addresses, "half")
            wait_until(lambda: not controllers.clean(), TAKEN_OVER_S)
            controllers.signal(first, signal.SIGKILL)
            os.kill(switch.pid, signal.SIGCONT)
            half = joining.result(DEADLINE_S)
    finally:
        os.kill(switch.pid, signal.SIGCONT)
    assert jobs(second) == [("before", "ready"), ("half", "ready")]
    before.sum()
    half.sum()
    assert controllers.state().processes["switch"] == switch and controllers.clean()
    assert "switch-down" not in [kind for kind, _ in controllers.events()]


def test_a_primary_that_is_told_to_end_hands_over_and_stop_ends_both(controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    pair = Pair(controllers.addresses, "before")
    controllers.signal(first, signal.SIGTERM)
    assert controllers.processes[first].wait(DEADLINE_S) == 0
    wait_until(lambda: is_primary(second), TAKEN_OVER_S)
    assert jobs(second) == [("before", "ready")]
    pair.sum()
    assert ("controller-stopped", "the controller was stopped; a standby takes over") in controllers.events()
    third = controllers.start(*SHORT)
    shown = controller("status", "--state-dir", controllers.state_dir).stdout
    assert f"standby at {third} (pid {controllers.processes[third].pid})" in shown
    switch = controllers.state().processes["switch"]
    pids = [controllers.processes[http].pid for http in (third, second)]
    stopped = controller("stop", "--state-dir", controllers.state_dir)
    assert stopped.stdout == (
        f"stopped standby at {third} (pid {pids[0]}) and controller (pid {pids[1]}) and switch (pid {switch.pid})\n"
    )
    assert not switch.alive and all(controllers.processes[http].wait(DEADLINE_S) == 0 for http in (second, third))
    assert [path.name for path in controllers.state_dir.glob("*.json")] == []


def test_stop_during_a_take_over_ends_everything(controllers: Controllers) -> None:
    """Whoever takes over after the first look has to be found, too."""
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    switch = controllers.state().processes["switch"]
    controllers.signal(first, signal.SIGKILL)
    stopped = controller("stop", "--state-dir", controllers.state_dir)
    assert stopped.returncode == 0, stopped.stderr
    # Before it has taken over, a signal interrupts it.
    assert controllers.processes[second].wait(DEADLINE_S) in (0, EXIT_CODE) and not switch.alive
    assert [path.name for path in controllers.state_dir.glob("*.json")] == []


def test_who_hands_over_to_nobody_ends_its_switches(controllers: Controllers) -> None:
    """Its standby is stopped: it may never continue. If it does, it finds nothing, and begins anew."""
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    switch = controllers.state().processes["switch"]
    controllers.signal(second, signal.SIGSTOP)
    controllers.signal(first, signal.SIGTERM)
    assert controllers.processes[first].wait(SILENCE_S + DEADLINE_S) == 0 and not switch.alive
    controllers.signal(second, signal.SIGCONT)
    wait_until(lambda: is_primary(second), TAKEN_OVER_S)
    pair = Pair(second, "after")
    pair.sum()
    pair.leave()


def test_a_primary_and_its_standby_that_are_told_to_end_both_end(controllers: Controllers) -> None:
    addresses = [controllers.start(*SHORT), controllers.start(*SHORT)]
    switch = controllers.state().processes["switch"]
    for http in addresses:
        controllers.signal(http, signal.SIGTERM)
    assert [controllers.processes[http].wait(SILENCE_S + DEADLINE_S) for http in addresses] == [0, 0]
    assert not switch.alive
    assert [path.name for path in controllers.state_dir.glob("*.json")] == []


def test_ranks_leave_while_nobody_is_primary(controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    pair = Pair(controllers.addresses, "leaving")
    pair.sum()
    controllers.signal(first, signal.SIGKILL)
    pair.leave()
    assert jobs(second) == [], "not the lease has ended it"


def test_a_take_over_that_cannot_be_recorded_waits_for_the_disk(controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    pair = Pair(controllers.addresses, "before")
    # It cannot be written where a folder is, no more than on a full disk.
    obstacle = controllers.state_dir / f"{STATE_FILE}.partial"
    obstacle.mkdir()
    controllers.signal(first, signal.SIGKILL)
    log = controllers.state_dir / "1.log"
    wait_until(lambda: "cannot take the fabric over" in log.read_text(), TAKEN_OVER_S)
    assert controllers.processes[second].poll() is None
    obstacle.rmdir()
    wait_until(lambda: is_primary(second), TAKEN_OVER_S)
    assert jobs(second) == [("before", "ready")]
    pair.sum()
    pair.leave()


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.0, 1.6])
def test_an_interrupt_ends_a_controller_that_starts(after_s: float, tmp_path: Path) -> None:
    words = ("--foreground", "--http", "127.0.0.1:0", *SHORT, "--state-dir", str(tmp_path))
    child = subprocess.Popen([sys.executable, "-m", "controller", "start", *words], cwd=ROOT, stderr=subprocess.PIPE)
    try:
        time.sleep(after_s)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=DEADLINE_S)
    finally:
        child.kill()
        child.wait()
    assert child.returncode in (0, 130, -signal.SIGINT)  # served; unwound; not even Python had begun
    assert [path.name for path in tmp_path.glob("*.json")] == []


def test_who_joins_waits_while_nobody_is_primary(controllers: Controllers) -> None:
    first, second = controllers.start(*SHORT), controllers.start(*SHORT)
    controllers.signal(first, signal.SIGKILL)
    require_controller(controllers.addresses)
    pair = Pair(controllers.addresses, "between")
    pair.sum()
    assert jobs(second) == [("between", "ready")]
    pair.leave()
    with pytest.raises(JoinError, match=f"no controller answers at {first} or http://127.0.0.1:1 "):
        join(f"{first},http://127.0.0.1:1", "nobody", 0, 1, "127.0.0.1", [5000], 1.0, lambda: 0)


def test_a_second_controller_is_a_mistake_unless_it_is_a_standby(controllers: Controllers) -> None:
    first = controllers.start(*SHORT, standby=False)
    where = ("--state-dir", controllers.state_dir, "--http", "127.0.0.1:0")
    pid = controllers.processes[first].pid
    refused = controller("start", "--foreground", *SHORT, *where)
    says = f"error: a controller is running already (pid {pid}, {first}); stop it with controller stop, start a standby"
    assert refused.returncode == 1 and refused.stderr.startswith(says), refused.stderr
    refused = controller("start", "--foreground", "--standby", "--elements", "256", *where)
    assert "run a program of 64 elements per packet, not 256" in refused.stderr
    refused = controller("start", "--standby", *SHORT, *where)
    assert refused.stderr.startswith("error: --standby needs --foreground, or controller run")
    refused = controller("start", "--foreground", "--standby", "--primary-silence", "0.5s", *where)
    assert "--primary-silence must be at least 1 s and finite" in refused.stderr
    assert is_primary(first) and os.waitpid(pid, os.WNOHANG) == (0, 0)
