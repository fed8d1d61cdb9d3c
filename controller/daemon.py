"""The controller process: switches, P4Runtime sessions, jobs and HTTP server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import uvicorn

from controller.errors import ControllerError, StateError, SwitchError
from controller.http_api import Service, create_app
from controller.jobs.job_table import JobTable
from controller.listen_address import parse_listen_address
from controller.state_file import State, create_folder, running
from controller.switches.embedded import Switches, start_switches
from controller.switches.fleet import SwitchFleet
from controller.switches.program import Artifact, load_artifact
from controller.switches.session import P4RuntimeSession
from controller.switches.supervisor import Supervisor
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.interrupts import interrupt_on
from hostlib.system.process import Process, write_whole

JOBS_FILE = "jobs.json"
EXPIRE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Options of a controller.

    Attributes:
        topology: switches that are already running; None starts embedded ones.
        tree: number of leaves of embedded switches under one root; 0 for a single switch.
        ports: of each embedded switch with ranks on it.
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


def netfold_version() -> str:
    try:
        return version("netfold")
    except PackageNotFoundError:
        return "uninstalled"


def run_controller(config: DaemonConfig, announce: Callable[[State], None] = lambda state: None) -> None:
    """Run until SIGTERM or SIGINT, then also stop the switches that it started.

    Args:
        announce: called once everything listens.

    Raises:
        ControllerError: it could not start; nothing is left running.
    """
    # Until uvicorn takes over, a signal unwinds whatever has been started so far.
    interrupt_on(signal.SIGTERM, signal.SIGINT)
    with _sole(config.state_dir):
        _run(config, announce)


@contextmanager
def _sole(state_dir: Path) -> Iterator[None]:
    """Lock the state directory, so that it has one controller even if two start at the same moment."""
    create_folder(state_dir)
    with (state_dir / "controller.lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise running(State.read(state_dir)) from None
        yield


def _run(config: DaemonConfig, announce: Callable[[State], None]) -> None:
    earlier = State.read(config.state_dir)
    if earlier is not None and earlier.controller.alive:
        raise running(earlier)
    _require_same_blocks(config, earlier)
    artifact = load_artifact(config.elements)
    listener = _listen(config.http)
    try:
        switches, kept = _switches(config, earlier)
        try:
            _serve(config, artifact, listener, switches, kept, announce)
        finally:
            switches.stop()
            State.forget(config.state_dir)
            (config.state_dir / JOBS_FILE).unlink(missing_ok=True)
    finally:
        listener.close()


def _require_same_blocks(config: DaemonConfig, earlier: State | None) -> None:
    """Check that earlier switches have the same elements per packet; jobs' results would differ otherwise."""
    if earlier is None or earlier.elements in (None, config.elements) or not earlier.at_work:
        return
    raise StateError(
        f"the switches of {config.state_dir} run a program of {earlier.elements} elements per packet, not "
        f"{config.elements}: use controller start --elements {earlier.elements} to take them over, "
        "or controller stop to end them"
    )


def _serve(
    config: DaemonConfig,
    artifact: Artifact,
    listener: socket.socket,
    switches: Switches,
    kept: bool,
    announce: Callable[[State], None],
) -> None:
    topology = switches.topology
    network = SwitchFleet(topology, _connect, time.monotonic)
    try:
        # Entries that belong to no kept job must not stay: if there may be any, the program is pushed again.
        jobs_file = config.state_dir / JOBS_FILE
        pushed = network.push(artifact, anew=not (kept and _explained(jobs_file)))
        jobs = JobTable(network, topology, time.monotonic, time.time)
        if not pushed:
            _restore(jobs, jobs_file)
        service = Service(
            version=netfold_version(),
            kind="embedded" if switches.processes else "external",
            elements=artifact.elements,
            slots=constants.SLOTS,
            jobs=jobs,
            switches=network,
            endpoints=topology.endpoints,
            clock=time.monotonic,
            changed=lambda dump: write_whole(jobs_file, {**dump, "clean": network.clean}, private=True),
        )
        service.changed(jobs.dump())
        here = Process.of(os.getpid())
        assert here is not None
        log = str(config.state_dir / "controller.log")

        announced: list[State] = []

        def record() -> None:
            processes, embedded = dict(switches.processes), dict(switches.embedded)
            state = State(here, _url(listener), switches.topology, processes, log, embedded, artifact.elements)
            state.write(config.state_dir)
            if not announced:
                announced.append(state)
                announce(state)

        supervisor = Supervisor(switches, network, artifact, service, record)
        _run_http(listener, service, supervisor, record)
        with contextlib.suppress(SwitchError):
            jobs.end_all()
    finally:
        network.close()


def _connect(switch: Switch, patience_s: float | None) -> P4RuntimeSession:
    # Election ids from the clock: a later controller has a higher id than earlier ones.
    return P4RuntimeSession(switch.p4rt, switch.device_id, time.time_ns(), patience_s)


def _run_http(listener: socket.socket, service: Service, supervisor: Supervisor, record: Callable[[], None]) -> None:
    server = uvicorn.Server(
        uvicorn.Config(create_app(service), log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    )
    # uvicorn re-raises the signal when it is done; the cleanup below still has to run.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    ended = threading.Event()
    threading.Thread(target=_expire, args=(service, ended), daemon=True).start()
    record()
    supervisor.start()
    try:
        server.run(sockets=[listener])
    finally:
        ended.set()
        supervisor.stop()


def _url(listener: socket.socket) -> str:
    address, port = listener.getsockname()
    return f"http://{address}:{port}"


def _expire(service: Service, ended: threading.Event) -> None:
    while not ended.wait(EXPIRE_EVERY_S):
        try:
            with service.changing() as jobs:
                jobs.expire()
        except SwitchError:
            continue  # /status reports that the switch is gone; the jobs are dropped all the same.


def _listen(http: str) -> socket.socket:
    address, port = parse_listen_address(http)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ControllerError(
            f"cannot listen on {http}: {error.strerror}; choose another with --http (port 0 takes any)"
        ) from error
    return listener


def _explained(path: Path) -> bool:
    """Whether the jobs in an earlier controller's state file account for all entries of its switches."""
    try:
        return bool(json.loads(path.read_text())["clean"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged: {error}; remove it and restart the switch") from error


def _restore(jobs: JobTable, path: Path) -> None:
    try:
        jobs.restore(json.loads(path.read_text()))
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged: {error}; remove it and restart the switch") from error


def _switches(config: DaemonConfig, earlier: State | None) -> tuple[Switches, bool]:
    """The switches to use, and whether an earlier controller of this state directory used them."""
    if config.topology is not None:
        kept = earlier is not None and earlier.topology == config.topology
        return Switches(config.state_dir, config.topology), kept
    if earlier is not None and earlier.processes:
        if all(process.alive for process in earlier.processes.values()):
            return Switches(config.state_dir, earlier.topology, earlier.processes, earlier.embedded), True
        for process in earlier.processes.values():
            process.stop()
    faults = {"loss": config.loss, "duplicate": config.duplicate, "reorder": config.reorder}
    return start_switches(
        config.state_dir, config.tree, config.ports, config.fabric_address, config.seed, faults
    ), False
