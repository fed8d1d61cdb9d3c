"""Fixtures that start the real thing: a controller with its embedded switch, on ephemeral ports, stopped afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings

from controller.state_file import STATE_FILE, State
from hostlib.system.http_client import bearer, verification
from hostlib.system.process import start_and_wait_ready
from tests.prerequisites import PREREQUISITES, missing

# How long an example takes says how busy the machine is. Where few are drawn (`make test`) they are the same ones each
# time, since some take a hundred times as long as others; `make test-all` draws others each time.
settings.register_profile("netfold", deadline=None, derandomize="NETFOLD_PROPERTY_EXAMPLES" in os.environ)
settings.load_profile("netfold")

# Before anything loads Triton: without a GPU its kernels are interpreted.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

# A shell without job control lets what runs in the background ignore Ctrl-C; so would all that tests start there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
MPIRUN = Path(sys.executable).with_name("mpirun")
# Ranks that wait for each other spin: others' tests must get the processor first.
MPIRUN_NICELY = ("nice", "-n", "15", str(MPIRUN), "--oversubscribe")
MPI = {  # in the environment of mpirun: everything by TCP on loopback
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


EACH_BY_ITSELF = "tests/docs/test_commands.py::test_what_a_page_says_works"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out by files, as --dist loadfile does, but pages one by one: all of them take as long as most files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(EACH_BY_ITSELF) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in PREREQUISITES:
        if item.get_closest_marker(marker) is not None and (reason := missing(marker)) is not None:
            pytest.skip(reason)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A running controller with its switch."""

    http: str
    state_dir: Path
    state: dict[str, Any]
    tokens: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """One HTTP call; (status code, decoded body), errors included. It sends the token of a rank that has joined
        this way, else the operator's.
        """
        member = path.partition("?")[0].removesuffix("/heartbeat")
        headers = bearer(self.tokens.get(member, self.state["operator"]))
        verify = verification(self.http, self.state["authority"])
        reply = httpx.request(method, self.http + path, json=body, headers=headers, timeout=10, verify=verify)
        answer = reply.json() if reply.content else None
        if method == "POST" and reply.status_code == 200 and "token" in answer:
            self.tokens[member] = answer["token"]
        return reply.status_code, answer

    def status(self) -> dict[str, Any]:
        return self.call("GET", "/v1/status")[1]

    def stop(self) -> bool:
        """End the controller, and with it its switches; False if it has to be killed."""
        state = State.read(self.state_dir)
        assert state is not None
        os.kill(state.controller.pid, signal.SIGTERM)
        return state.controller.gone_within(10)


def controller(*arguments: str | Path, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
    """Run a `controller` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "controller", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@contextmanager
def running_fabric(state_dir: Path, *options: str) -> Iterator[Fabric]:
    """A fabric with further `controller start` options; whatever happened meanwhile, it is stopped afterwards."""
    state_dir.mkdir(parents=True, exist_ok=True)
    log = state_dir / "controller.log"
    arguments = ["--foreground", "--http", "127.0.0.1:0", "--state-dir", state_dir, *options]
    # As `controller start` does it, without another Python that waits for it. Not to die with the thread that starts it.
    child, described = start_and_wait_ready(
        [sys.executable, "-m", "controller", "start", *map(str, arguments)],
        state_dir / STATE_FILE,
        log,
        what="the controller",
        dies_by=None,
        folder=ROOT,
    )
    try:
        yield Fabric(described["http"], state_dir, described)
    finally:
        stop_fabric(state_dir)
        child.kill()
        child.wait()


def stop_fabric(state_dir: Path) -> None:
    """The controller, if it lives, and the switches that it started."""
    state = State.read(state_dir)
    if state is not None:
        for process in (state.controller, *state.processes.values()):
            process.stop()
        State.forget(state_dir)


@pytest.fixture(scope="session")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """One for each worker process: for tests that leave it as they found it, but for what it has counted."""
    with running_fabric(tmp_path_factory.mktemp("fabric") / "state") as started:
        yield started


@pytest.fixture
def start_fabric(tmp_path: Path) -> Iterator[Callable[..., Fabric]]:
    """Start fabrics; all are stopped after the test."""
    with ExitStack() as started:
        count = itertools.count()
        yield lambda *options: started.enter_context(running_fabric(tmp_path / f"fabric{next(count)}", *options))
