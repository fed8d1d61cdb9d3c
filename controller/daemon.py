"""The controller as a process: switches, P4Runtime sessions, jobs and HTTP server together."""

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
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import uvicorn

from controller.api import Service, create_app
from controller.artifact import Artifact, load_artifact
from controller.errors import ControllerError, StateError, SwitchError
from controller.fabric import P4RuntimeFabric
from controller.job import JobTable
from controller.network import Network
from controller.process import Process, State, running, write_whole
from controller.share import HOSTS_PER_SWITCH
from controller.topology import Switch, Topology
from hostlib import layout

JOBS_FILE = "jobs.json"
SWITCH_START_TIMEOUT_S = 60.0
LARGEST_TREE = 16
UPLINK, FIRST_DOWNLINK = 100, 101  # of embedded trees
SWITCH_IDLE_S = 60
FABRIC_ADDRESS = "10.255.255.254"
EXPIRE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """What one controller is started with.

    Attributes:
        topology: switches that run already; None starts embedded ones.
        tree: of embedded switches: leaves under one root; 0 for a single switch.
        ports: of each embedded switch that ranks are on.
    """

    http: str
    state_dir: Path
    elements: int = 256
    topology: Topology | None = None
    tree: int = 0
    ports: int = 32
    fabric_address: str = FABRIC_ADDRESS
    seed: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


@dataclass(frozen=True, slots=True)
class Switches:
    """The switches that the controller can reach; `processes` are its own to stop."""

    topology: Topology
    processes: dict[str, Process]

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop()


def netfold_version() -> str:
    try:
        return version("netfold")
    except PackageNotFoundError:
        return "uninstalled"


def run_controller(config: DaemonConfig) -> None:
    """Run until SIGTERM or SIGINT; then stop the switches that were started, too.

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
        switches, kept = _switches(config, earlier)
        try:
            _serve(config, artifact, listener, switches, kept)
        finally:
            switches.stop()
            State.forget(config.state_dir)
            (config.state_dir / JOBS_FILE).unlink(missing_ok=True)
    finally:
        listener.close()


def _serve(config: DaemonConfig, artifact: Artifact, listener: socket.socket, switches: Switches, kept: bool) -> None:
    # Election ids from the clock: a controller that comes later outbids one that went.
    election_id = time.time_ns()
    topology = switches.topology
    network = Network(topology, lambda switch: P4RuntimeFabric(switch.p4rt, switch.device_id, election_id))
    try:
        # Entries that no kept job explains must not stay: without one, the program is pushed anew.
        jobs_file = config.state_dir / JOBS_FILE
        pushed = network.push(artifact, anew=not (kept and jobs_file.exists()))
        jobs = JobTable(network, topology, time.monotonic, time.time)
        if not pushed:
            _restore(jobs, jobs_file)
        service = Service(
            version=netfold_version(),
            kind="embedded" if switches.processes else "external",
            elements=artifact.elements,
            slots=layout.SLOTS,
            jobs=jobs,
            switches=network,
            endpoints={(s.name, n): address for s in topology.switches for n, address in s.ports.items()},
            clock=time.monotonic,
            changed=lambda dump: write_whole(jobs_file, dump),
        )
        service.changed(jobs.dump())
        _run_http(config, listener, switches, service)
        with contextlib.suppress(SwitchError):
            jobs.end_all()
    finally:
        network.close()


def _run_http(config: DaemonConfig, listener: socket.socket, switches: Switches, service: Service) -> None:
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
    log = str(config.state_dir / "controller.log")
    State(here, _url(listener), switches.topology, switches.processes, log).write(config.state_dir)
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


# ---- the switches -----------------------------------------------------------------------------------------------


def _switches(config: DaemonConfig, earlier: State | None) -> tuple[Switches, bool]:
    """The switches to use, and whether they are those that an earlier controller of this state directory used."""
    if config.topology is not None:
        kept = earlier is not None and earlier.topology == config.topology
        return Switches(config.topology, {}), kept
    if earlier is not None and earlier.processes:
        if all(process.alive for process in earlier.processes.values()):
            return Switches(earlier.topology, earlier.processes), True
        for process in earlier.processes.values():
            process.stop()
    return _start_switches(config), False


def _start_switches(config: DaemonConfig) -> Switches:
    """Start embedded switches as processes of their own: they must outlive a controller that is killed."""
    config.state_dir.mkdir(parents=True, exist_ok=True)
    if not 0 <= config.tree <= LARGEST_TREE:
        raise ControllerError(f"--tree {config.tree} is not in 0..{LARGEST_TREE} leaves")
    if not 1 <= config.ports <= HOSTS_PER_SWITCH:
        raise ControllerError(f"--ports {config.ports} is not in 1..{HOSTS_PER_SWITCH}")
    processes: dict[str, Process] = {}
    try:
        wires = [f"{FIRST_DOWNLINK + leaf}=wire:127.0.0.1:0" for leaf in range(config.tree)]
        root, said = _start_switch(config, processes, "root" if config.tree else "switch", wires)
        switches = [root]
        for leaf in range(config.tree):
            downlink = FIRST_DOWNLINK + leaf
            wire = f"{UPLINK}=wire:127.0.0.1:0,{said['wires'][str(downlink)]}"
            started, _ = _start_switch(config, processes, f"leaf{leaf}", [wire], leaf + 1)
            switches.append(replace(started, parent="root", uplink=UPLINK, downlink=downlink))
        return Switches(Topology(tuple(switches)), processes)
    except BaseException:
        for process in processes.values():
            process.stop()
        raise


def _start_switch(
    config: DaemonConfig, processes: dict[str, Process], name: str, wires: list[str], number: int = 0
) -> tuple[Switch, dict[str, Any]]:
    """Start the switch and enter it into `processes`; what it is, and what its ready file says."""
    ready, log = config.state_dir / f"{name}.json", config.state_dir / f"{name}.log"
    ready.unlink(missing_ok=True)
    address = str(IPv4Address(config.fabric_address) - number)
    options = {
        "--p4rt": "127.0.0.1:0",
        "--udp-ports": config.ports,
        "--udp-destination": f"{address}:{layout.NETFOLD_UDP_PORT}",
        "--ready-file": ready,
        "--exit-when-idle": SWITCH_IDLE_S,
        "--seed": config.seed * LARGEST_TREE + number,
        "--loss": config.loss,
        "--duplicate": config.duplicate,
        "--reorder": config.reorder,
    }
    command = [sys.executable, "-m", "emulation", "switch"]
    command += [str(word) for option in options.items() for word in option]
    command += [word for wire in wires for word in ("--port", wire)]
    with log.open("wb") as said:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    try:
        described = _wait_ready(child, ready, log)
        process = Process.of(child.pid)
        if process is None:
            raise SwitchError("the embedded switch died right after it started")
    except BaseException:
        child.kill()
        child.wait()
        raise
    processes[name] = process
    # Reaped when it ends, so that it never looks alive as a zombie.
    threading.Thread(target=child.wait, daemon=True).start()
    ports = {int(n): endpoint for n, endpoint in described["ports"].items()}
    return Switch(name, described["p4rt"], described["device_id"], address, ports), described


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
