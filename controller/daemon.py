"""The controller process: switches, P4Runtime sessions, jobs and HTTP server."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from controller.errors import ControllerError, StateError, SwitchError
from controller.events.event_log import EventLog
from controller.http.app import create_app
from controller.http.punctual_protocol import PunctualProtocol
from controller.http.service import Service
from controller.jobs.job_table import LEASE_S, JobTable
from controller.lease_clock import LeaseClock
from controller.listen_address import parse_listen_address
from controller.rates import MOST_REQUESTS
from controller.state_file import State, create_folder, running
from controller.state_store import RecordedEntries, StateStore
from controller.switches.embedded import Switches, start_switches
from controller.switches.fleet import SwitchFleet
from controller.switches.program import Artifact, load_artifact
from controller.switches.session import P4RuntimeSession
from controller.switches.supervisor import Supervisor
from controller.systemd import notify
from controller.tenants import Tenants
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.certificate_folder import CertificateFolder, is_local
from hostlib.system.interrupts import interrupt_on
from hostlib.system.process import Process

EXPIRE_EVERY_S = 0.5
MOST_FILES, OWN_FILES = 8192, 512
AWAY_S = 1.0  # after no look at the leases for this long, ranks may not have been heard

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Options of a controller.

    Attributes:
        topology: switches that are already running; None starts embedded ones.
        tree: number of leaves of embedded switches under one root; 0 for a single switch.
        ports: of each embedded switch with ranks on it.
        lease_s: how long a rank may give no heartbeat before its place is lost.
        rate: requests a second of a client, and of a tenant.
        take_over: whether running switches may have another controller, or another program.
        certificates: for HTTP, and for switches that are not on this machine.
        trusted_network: whether tokens and TLS are not needed on addresses that other machines reach.
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
    lease_s: float = LEASE_S
    rate: int = MOST_REQUESTS
    take_over: bool = False
    certificates: CertificateFolder | None = None
    trusted_network: bool = False


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
    os.umask(0o077)  # jobs' secrets, and who uses the fabric, are nobody else's business
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
    with (
        contextlib.closing(_listen(config.http)) as listener,
        contextlib.closing(StateStore(config.state_dir)) as store,
    ):
        switches, kept = _switches(config, earlier)
        try:
            _serve(config, artifact, listener, store, switches, kept, announce)
        finally:
            switches.stop()
            State.forget(config.state_dir)
            with contextlib.suppress(StateError):  # What it says will not be believed: its switches are gone.
                store.forget_jobs()


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
    store: StateStore,
    switches: Switches,
    kept: bool,
    announce: Callable[[State], None],
) -> None:
    topology = switches.topology
    connect = Connector(bool(switches.processes), config.take_over, config.certificates)
    network = SwitchFleet(topology, connect, time.monotonic)
    try:
        # Entries that belong to no kept job must not stay: if there may be any, the program is pushed again.
        saved = store.load()
        pushed = network.push(artifact, anew=not (kept and saved["clean"]))
        clock = LeaseClock(time.monotonic, AWAY_S)
        entries = RecordedEntries(network, store.begin_writes)
        tenants = Tenants(store)
        jobs = JobTable(
            entries,
            topology,
            clock,
            time.time,
            lambda dump: store.save(dump, network.clean),
            tenants.quota,
            config.lease_s,
        )
        if pushed:
            jobs.restore_epoch(saved["last_epoch"])
        else:
            _restore(jobs, saved, store.path)
        service = Service(
            version=netfold_version(),
            kind="embedded" if switches.processes else "external",
            elements=artifact.elements,
            slots=constants.SLOTS,
            jobs=jobs,
            switches=network,
            endpoints=topology.endpoints,
            clock=clock,
            events=EventLog(config.state_dir, time.time),
            tenant_of=tenants.tenant_of,
            rate=config.rate,
            token_required=not (is_local(config.http) or config.trusted_network),
        )
        took_over = f" and took over {len(jobs.jobs)} jobs" if jobs.jobs else ""
        service.events.append("controller-started", f"the controller {service.version} started{took_over}")
        jobs.changed()
        here = Process.of(os.getpid())
        assert here is not None
        log = str(config.state_dir / "controller.log")

        announced: list[State] = []

        def record() -> None:
            processes, embedded = dict(switches.processes), dict(switches.embedded)
            state = State(
                here,
                _url(listener, config.certificates),
                switches.topology,
                processes,
                log,
                embedded,
                artifact.elements,
                service.operator,
                None if config.certificates is None else str(config.certificates.authority.absolute()),
            )
            state.write(config.state_dir)
            if not announced:
                announced.append(state)
                announce(state)
                notify(f"READY=1\nSTATUS=at {state.http}")

        supervisor = Supervisor(switches, network, artifact, service, record)
        _run_http(listener, config.certificates, service, clock, supervisor, record)
        with contextlib.suppress(SwitchError, StateError), service.changing("the controller was stopped"):
            jobs.end_all()
        service.events.append("controller-stopped", "the controller was stopped")
    finally:
        network.close()


class Connector:
    """Opens sessions with switches.

    Args:
        certificates: for switches that other machines reach.
        own: whether the controller started them: others have no business there.
        take_over: whether the first session may end another controller's.
    """

    def __init__(self, own: bool, take_over: bool, certificates: CertificateFolder | None) -> None:
        self._certificates = certificates
        self._own = own
        self._take_over = take_over
        self._former: dict[str, int] = {}

    def __call__(self, switch: Switch, patience_s: float | None) -> P4RuntimeSession:
        former = self._former.get(switch.name)
        take_over = self._own or (self._take_over and former is None)
        certificates = None if is_local(switch.p4rt) else self._certificates
        session = P4RuntimeSession(switch.p4rt, switch.device_id, patience_s, take_over, former, certificates)
        self._former[switch.name] = session.election_id
        return session


def _run_http(
    listener: socket.socket,
    certificates: CertificateFolder | None,
    service: Service,
    clock: LeaseClock,
    supervisor: Supervisor,
    record: Callable[[], None],
) -> None:
    server = Server(
        uvicorn.Config(
            create_app(service),
            http=PunctualProtocol,
            proxy_headers=False,  # whoever is on this machine could claim to be any client
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            limit_concurrency=_most_connections(),
            ssl_certfile=None if certificates is None else certificates.server.certificate,
            ssl_keyfile=None if certificates is None else certificates.server.key,
        )
    )
    server.ending = service.events.closed
    # A signal counts from here on, before uvicorn takes over; and uvicorn raises it again when it is done, but the
    # cleanup below still has to run.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    ended = threading.Event()
    threading.Thread(target=_expire, args=(service, clock, ended), name="leases", daemon=True).start()
    record()
    supervisor.start()
    try:
        server.run(sockets=[listener])
    finally:
        ended.set()
        supervisor.stop()


class Server(uvicorn.Server):
    """A server that says so when it begins to end: it waits for its answers to end, and streams would not."""

    ending: threading.Event

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.ending.is_set():
            self.ending.set()
            notify("STOPPING=1")
        super().handle_exit(sig, frame)


def _most_connections() -> int:
    """Connections to the HTTP server: as many as there may be, beside what the controller itself has open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - OWN_FILES, OWN_FILES)


def _url(listener: socket.socket, certificates: CertificateFolder | None) -> str:
    address, port = listener.getsockname()
    own = "127.0.0.1" if address == "0.0.0.0" else address
    return f"{'http' if certificates is None else 'https'}://{own}:{port}"


def _expire(service: Service, clock: LeaseClock, ended: threading.Event) -> None:
    """Look at the leases again and again. Whatever goes wrong, it goes on: leases would last for ever."""
    logged = ""
    while not ended.wait(EXPIRE_EVERY_S):
        try:
            with service.changing() as jobs:
                clock.tick()
                jobs.expire()
            logged = ""
        except ControllerError as error:
            # /v1/status reports that the switch is gone; the jobs are dropped all the same.
            if str(error) != logged:
                logged = str(error)
                log.warning("%s; trying again", logged)
        except Exception:
            log.exception("looking at the leases failed; trying again")


def _listen(http: str) -> socket.socket:
    address, port = parse_listen_address(http)
    # With the protocol named: asyncio sets TCP_NODELAY only then, and answers would wait 40 ms for acknowledgements.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ControllerError(
            f"cannot listen on {http}: {error.strerror}; choose another with --http (port 0 takes any)"
        ) from error
    return listener


def _restore(jobs: JobTable, saved: dict[str, Any], path: Path) -> None:
    try:
        jobs.restore(saved)
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
