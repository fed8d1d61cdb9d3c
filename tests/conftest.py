"""Fixtures that start the real thing: a controller with its embedded switch, on ephemeral ports, stopped afterwards."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from controller.process import STATE_FILE, State

# How long an example takes says how busy the machine is.
settings.register_profile("netfold", deadline=None)
settings.load_profile("netfold")

# Before anything loads Triton: without a GPU its kernels are interpreted.
os.environ.setdefault("TRITON_INTERPRET", "0" if Path("/dev/nvidiactl").exists() else "1")

# A shell without job control lets what runs in the background ignore Ctrl-C; so would all that tests start there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
FABRIC_S = 90.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a network namespace and packet sockets")


@dataclass(frozen=True, slots=True)
class Fabric:
    """A running controller with its switch."""

    http: str
    state_dir: Path
    state: dict[str, Any]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """One HTTP call; (status code, decoded body), errors included."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return reply.status, json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read() or b"null")

    def status(self) -> dict[str, Any]:
        return self.call("GET", "/status")[1]


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
    told = ["--foreground", "--http", "127.0.0.1:0", "--state-dir", state_dir, *options]
    with log.open("wb") as said:
        # As `controller start` does it, without another Python that waits for it.
        child = subprocess.Popen(
            [sys.executable, "-m", "controller", "start", *told],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        give_up = time.monotonic() + FABRIC_S
        while (state := State.read(state_dir)) is None or state.controller.pid != child.pid:
            assert child.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.02)
        yield Fabric(state.http, state_dir, json.loads((state_dir / STATE_FILE).read_text()))
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


@pytest.fixture
def start_fabric(tmp_path: Path) -> Iterator[Callable[..., Fabric]]:
    """Start fabrics; all are stopped after the test."""
    with ExitStack() as started:
        count = itertools.count()
        yield lambda *options: started.enter_context(running_fabric(tmp_path / f"fabric{next(count)}", *options))
