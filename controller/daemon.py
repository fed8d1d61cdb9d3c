"""The controller as a process: switch, P4Runtime session, jobs and HTTP server together."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import uvicorn

from controller.api import Service, create_app
from controller.artifact import Artifact, load_artifact
from controller.errors import ControllerError, StateError, SwitchError
from controller.fabric import P4RuntimeFabric
from controller.job import JobTable
from controller.process import Process, State, running, write_whole
from hostlib import layout

JOBS_FILE = "jobs.json"
SWITCH_START_TIMEOUT_S = 60.0
SWITCH_PORTS = 32
SWITCH_IDLE_S = 60
FABRIC_ADDRESS = "10.255.255.254"
EXPIRE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """What one controller is started with.

    Attributes:
        switch: P4Runtime address of a switch that runs already; None starts an embedded one.
        switch_ports: with `switch`: port number -> ADDRESS:PORT where a rank on it reaches the fabric.
    """

    http: str
    state_dir: Path
    elements: int = 256
    switch: str | None = None
    device_id: int = 1
    switch_ports: dict[str, str] | None = None
    fabric_address: str = FABRIC_ADDRESS
    seed: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that the controller can reach; `process` when it is the controller's own to stop."""

    p4rt: str
    device_id: int
    ports: dict[str, str]
    process: Process | None

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def netfold_version() -> str:
    try:
        return version("netfold")
    except PackageNotFoundError:
        return "uninstalled"


def run_controller(config: DaemonConfig) -> None:
    """Run until SIGTERM or SIGINT; then stop the switch that was started, too.

    Raises:
        ControllerError: it could not start; nothing is left running.
    """
    # Until uvicorn takes over, a signal unwinds whatever has been started so far.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with _sole(config.state_dir):
        _run(config)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _sole(state_dir: Path) -> Iterator[None]:
    """One controller per state directory, also when two start at the same moment."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "controller.lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise running(State.read(state_dir)) from None
        yield


def _run(config: DaemonConfig) -> None:
    earlier = State.read(config.state_dir)
    if earlier is not None and earlier.controller.alive:
        raise running(earlier)
    artifact = load_artifact(config.elements)
    listener = _listen(config.http)
    try:
        switch, kept = _switch(config, earlier)
        try:
            _serve(config, artifact, listener, switch, kept)
        finally:
            switch.stop()
            State.forget(config.state_dir)
            (config.state_dir / JOBS_FILE).unlink(missing_ok=True)
    finally:
        listener.close()


def _serve(config: DaemonConfig, artifact: Artifact, listener: socket.socket, switch: Switch, kept: bool) -> None:
    # Election ids from the clock: a controller that comes later outbids one that went.
    fabric = P4RuntimeFabric(switch.p4rt, switch.device_id, time.time_ns())
    try:
        # Entries that no kept job explains must not stay: without one, the program is pushed anew.
        jobs_file = config.state_dir / JOBS_FILE
        pushed = fabric.push(artifact, config.fabric_address, anew=not (kept and jobs_file.exists()))
        jobs = JobTable(fabric, [int(n) for n in switch.ports], time.monotonic, time.time)
        if not pushed:
            _restore(jobs, jobs_file)
        service = Service(
            version=netfold_version(),
            kind="embedded" if switch.process else "external",
            elements=artifact.elements,
            slots=layout.SLOTS,
            jobs=jobs,
            switch=fabric,
            endpoints={int(n): address for n, address in switch.ports.items()},
            clock=time.monotonic,
            changed=lambda dump: write_whole(jobs_file, dump),
        )
        service.changed(jobs.dump())
        _run_http(config, listener, switch, service)
        with contextlib.suppress(SwitchError):
            jobs.end_all()
    finally:
        fabric.close()


def _run_http(config: DaemonConfig, listener: socket.socket, switch: Switch, service: Service) -> None:
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    )
    # uvicorn passes the signal on when it is done; what is left to do then is ours.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ended = threading.Event()
    threading.Thread(target=_expire, args=(service, ended), daemon=True).start()
    here = Process.of(os.getpid())
    assert here is not None
    State(
        here,
        _url(listener),
        switch.p4rt,
        switch.device_id,
        switch.process,
        switch.ports,
        str(config.state_dir / "controller.log"),
    ).write(config.state_dir)
    try:
        server.run(sockets=[listener])
    finally:
        ended.set()


def _url(listener: socket.socket) -> str:
    address, port = listener.getsockname()
    return f"http://{address}:{port}"


def _expire(service: Service, ended: threading.Event) -> None:
    while not ended.wait(EXPIRE_EVERY_S):
        try:
            with service.changing() as jobs:
                jobs.expire()
        except SwitchError:
            continue  # /status says that the switch is gone; the jobs are forgotten all the same.


def _listen(http: str) -> socket.socket:
    address, _, port = http.rpartition(":")
    if not address or not port.isdigit() or int(port) > 65535:
        raise ControllerError(f"--http {http!r} is not ADDRESS:PORT (as in 127.0.0.1:9339)")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, int(port)))
        listener.listen(128)
    except OSError as wrong:
        listener.close()
        raise ControllerError(
            f"cannot listen on {http}: {wrong.strerror}; choose another with --http (port 0 takes any)"
        ) from wrong
    return listener


def _restore(jobs: JobTable, path: Path) -> None:
    try:
        jobs.restore(json.loads(path.read_text()))
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as wrong:
        raise StateError(f"{path} is damaged: {wrong}; remove it and restart the switch") from wrong


# ---- the switch -------------------------------------------------------------------------------------------------


def _switch(config: DaemonConfig, earlier: State | None) -> tuple[Switch, bool]:
    """The switch to use, and whether it is one that an earlier controller of this state directory used."""
    if config.switch is not None:
        if not config.switch_ports:
            raise ControllerError("--switch needs --switch-ports: a JSON file that says where ranks reach each port")
        kept = earlier is not None and earlier.p4rt == config.switch
        return Switch(config.switch, config.device_id, config.switch_ports, None), kept
    if earlier is not None and earlier.switch is not None and earlier.switch.alive:
        return Switch(earlier.p4rt, earlier.device_id, earlier.switch_ports, earlier.switch), True
    return _start_switch(config), False


def _start_switch(config: DaemonConfig) -> Switch:
    """Start an embedded switch as a process of its own: it must outlive a controller that is killed."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    ready, said = config.state_dir / "switch.json", config.state_dir / "switch.log"
    ready.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "emulation",
        "switch",
        "--p4rt",
        "127.0.0.1:0",
        "--udp-ports",
        str(SWITCH_PORTS),
        "--udp-destination",
        f"{config.fabric_address}:{layout.NETFOLD_UDP_PORT}",
        "--ready-file",
        str(ready),
        "--exit-when-idle",
        str(SWITCH_IDLE_S),
        "--seed",
        str(config.seed),
        "--loss",
        str(config.loss),
        "--duplicate",
        str(config.duplicate),
        "--reorder",
        str(config.reorder),
    ]
    with said.open("wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        described = _wait_ready(child, ready, said)
        process = Process.of(child.pid)
        if process is None:
            raise SwitchError("the embedded switch died right after it started")
    except BaseException:
        child.kill()
        child.wait()
        raise
    # Reaped when it ends, so that it never looks alive as a zombie.
    threading.Thread(target=child.wait, daemon=True).start()
    return Switch(described["p4rt"], described["device_id"], described["ports"], process)


def _wait_ready(child: subprocess.Popen[bytes], ready: Path, said: Path) -> dict[str, Any]:
    give_up = time.monotonic() + SWITCH_START_TIMEOUT_S
    while time.monotonic() < give_up:
        if ready.exists():
            described: dict[str, Any] = json.loads(ready.read_text())
            return described
        if child.poll() is not None:
            lines = [line for line in said.read_text().splitlines() if line.strip()]
            reason = lines[-1].removeprefix("error: ") if lines else f"exit code {child.returncode}"
            raise SwitchError(f"the embedded switch did not start: {reason}")
        time.sleep(0.05)
    raise SwitchError(f"the embedded switch was not ready within {SWITCH_START_TIMEOUT_S:.0f} s; see {said}")
