"""The controller process: as a standby it waits; as the primary it has switches, P4Runtime sessions, jobs, an HTTP server."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from controller.errors import ControllerError, DeposedError, ElectionError, StateError, SwitchError
from controller.events.event_log import EventLog
from controller.http.app import create_app
from controller.http.server import Server, listen, url_of
from controller.http.service import Service
from controller.jobs.job_table import LEASE_S, JobTable
from controller.lease_clock import LeaseClock
from controller.primacy import AWAY_S, SILENCE_S, Primacy
from controller.rates import MOST_REQUESTS
from controller.repeated_warning import RepeatedWarning
from controller.standby import hand_over, wait_for_primacy
from controller.state_file import Standby, State, create_folder, is_full, running
from controller.state_store import RecordedEntries, StateStore
from controller.switches.embedded import Switches, start_switches
from controller.switches.fleet import SwitchFleet
from controller.switches.session import P4RuntimeSession
from controller.switches.supervisor import Supervisor
from controller.systemd import notify
from controller.tenants import Tenants
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.certificate_folder import CertificateFolder, is_local
from hostlib.system.interrupts import came, interrupt_on
from hostlib.system.process import Process

EXPIRE_EVERY_S, LAST_LOOK_S = 0.5, 5.0
HELD_S, HELD_RETRY_S = 7.0, 0.5  # a switch ends streams that say nothing after 5 s

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Options of a controller.

    Attributes:
        topology: switches that are already running; None starts embedded ones.
        tree: number of leaves of embedded switches under one root; 0 for a single switch.
        ports: of each embedded switch with ranks on it.
        lease_s: how long a rank may give no heartbeat before its place is lost.
        rate: requests a second of a client, and joins a second of a tenant.
        take_over: whether running switches may have another controller, or another program.
        certificates: for HTTP, and for switches that are not on this machine.
        trusted_network: whether tokens and TLS are not needed on addresses that other machines reach.
        standby: whether to wait, if the state directory has a primary already, until it is gone.
        silence_s: how long the primary may show no sign of life.
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
    standby: bool = False
    silence_s: float = SILENCE_S


def netfold_version() -> str:
    try:
        return version("netfold")
    except PackageNotFoundError:
        return "uninstalled"


def run_controller(config: DaemonConfig, announce: Callable[[State], None] = lambda state: None) -> None:
    """Run until SIGTERM or SIGINT, then also stop the switches that it started, unless a standby takes them over.

    A primary that another controller has deposed, because it was stopped for too long, waits as a standby from then on.

    Args:
        announce: called once everything listens.

    Raises:
        ControllerError: it could not start; nothing is left running that was not there before.
    """
    # Until uvicorn takes over, a signal unwinds whatever has been started so far.
    interrupt_on(signal.SIGTERM, signal.SIGINT)
    os.umask(0o077)  # jobs' secrets, and who uses the fabric, are nobody else's business
    create_folder(config.state_dir)
    with contextlib.closing(Primacy(config.state_dir, config.silence_s)) as primacy:
        if not config.standby:
            _require_alone(config, primacy)
        elif (earlier := State.read(config.state_dir)) is not None and earlier.controller.alive:
            _require_same_fabric(config, earlier)
        with contextlib.closing(listen(config.http)) as listener:
            try:
                _take_turns(config, listener, primacy, announce)
            except KeyboardInterrupt:
                if config.standby:
                    _end_unserved(config, primacy, url_of(listener, config.certificates))
                raise
            _end_unserved(config, primacy, url_of(listener, config.certificates))


def _require_alone(config: DaemonConfig, primacy: Primacy) -> None:
    """Check that the state directory has no other controller: two would be a mistake."""
    primacy.require_free()
    earlier = State.read(config.state_dir)
    if earlier is not None and earlier.controller.alive:
        raise running(earlier.controller.pid, earlier.http)


def _take_turns(
    config: DaemonConfig, listener: socket.socket, primacy: Primacy, announce: Callable[[State], None]
) -> None:
    """Be the primary, or a standby, until told to end."""
    http, told = url_of(listener, config.certificates), threading.Event()
    if not primacy.claim(http):
        holder = primacy.holder()
        if not config.standby:
            raise running(holder.process.pid, holder.http) if holder is not None else StateError("it is just starting")
        if not wait_for_primacy(primacy, listener, config.certificates, http, told):
            return
    patient = config.standby
    while True:
        try:
            if _run(config, listener, primacy, patient, told, announce):
                return
            log.warning("another controller is the primary; waiting as its standby")
        except DeposedError as error:
            log.warning("%s", error)
        except (SwitchError, StateError) as error:
            if not patient or State.read(config.state_dir) is None:
                raise
            log.warning("cannot take the fabric over: %s; trying again", error)
        primacy.release()
        if not wait_for_primacy(primacy, listener, config.certificates, http, told):
            return
        patient = True


def _end_unserved(config: DaemonConfig, primacy: Primacy, http: str) -> None:
    """End as a primary that was told to before it served: a standby takes what earlier ones left, or it ends, too."""
    if not primacy.held or (earlier := State.read(config.state_dir)) is None:
        return
    if not hand_over(primacy, http, config.silence_s):
        for process in earlier.processes.values():
            process.stop()
        State.forget(config.state_dir)


def _run(
    config: DaemonConfig,
    listener: socket.socket,
    primacy: Primacy,
    patient: bool,
    told: threading.Event,
    announce: Callable[[State], None],
) -> bool:
    """Be the primary; returns whether it was told to end, or else has lost the primacy.

    Args:
        patient: leave what an earlier controller left as it is, if it cannot be taken over.
        told: set when a signal tells it to end.

    Raises:
        ControllerError: it could not start.
    """
    earlier = State.read(config.state_dir)
    _require_same_blocks(config, earlier)
    with contextlib.closing(StateStore(config.state_dir, primacy.epoch)) as store:
        switches, kept = _switches(config, earlier)
        left = kept and patient
        try:
            left = _serve(config, listener, store, primacy, switches, kept, told, announce)
        finally:
            if not left and primacy.held:
                switches.stop()
                State.forget(config.state_dir)
                with contextlib.suppress(StateError):  # What it says will not be believed: its switches are gone.
                    store.forget_jobs()
    return told.is_set()


def _require_same_fabric(config: DaemonConfig, earlier: State) -> None:
    """Check that a standby could go on where its primary ends.

    Raises:
        StateError: it has other switches, or another number of elements.
    """
    _require_same_blocks(config, earlier)
    if config.topology != (None if earlier.processes else earlier.topology):
        raise StateError(
            f"the primary of {config.state_dir} has other switches: a standby needs the same options as its primary, "
            "but for --http"
        )


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
    listener: socket.socket,
    store: StateStore,
    primacy: Primacy,
    switches: Switches,
    kept: bool,
    told: threading.Event,
    announce: Callable[[State], None],
) -> bool:
    """Be the primary until told to end, or deposed; returns whether another controller has, or takes, the switches."""
    connect = Connector(bool(switches.processes), config.take_over, config.certificates, primacy)
    network, held = _sessions(switches, connect)
    topology = switches.topology
    try:
        saved = store.load()
        pushed = network.push(config.elements, anew=held or not kept)
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
            if not saved["clean"]:
                _reconcile(network, jobs, config.elements)
        service = Service(
            version=netfold_version(),
            kind="embedded" if switches.processes else "external",
            elements=config.elements,
            slots=constants.SLOTS,
            jobs=jobs,
            switches=network,
            endpoints=topology.endpoints,
            clock=clock,
            events=EventLog(config.state_dir, time.time, lambda: primacy.held),
            tenant_of=tenants.tenant_of,
            rate=config.rate,
            token_required=not (is_local(config.http) or config.trusted_network),
            require_primary=primacy.require,
            disk_full=lambda: is_full(config.state_dir),
        )
        took_over = f" and took over {len(jobs.jobs)} jobs" if jobs.jobs else ""
        service.events.append("controller-started", f"the controller {service.version} started{took_over}")
        jobs.changed()
        here = Process.of(os.getpid())
        assert here is not None
        announced: list[State] = []

        def record() -> None:
            processes, embedded = dict(switches.processes), dict(switches.embedded)
            state = State(
                here,
                url_of(listener, config.certificates),
                switches.topology,
                processes,
                str(config.state_dir / "controller.log"),
                embedded,
                config.elements,
                service.operator,
                None if config.certificates is None else str(config.certificates.authority.absolute()),
            )
            # One that is stopped here and comes back would write over what its successor has written.
            with primacy.fenced():
                state.write(config.state_dir)
            if not announced:
                announced.append(state)
                announce(state)
                notify(f"READY=1\nSTATUS=at {state.http}")

        supervisor = Supervisor(switches, network, config.elements, service, record, primacy.require)
        _run_http(listener, config.certificates, service, clock, supervisor, primacy, told, record)
        if not primacy.held:
            return True
        if Standby.all(config.state_dir):
            service.events.append("controller-stopped", "the controller was stopped; a standby takes over")
            if hand_over(primacy, url_of(listener, config.certificates), config.silence_s):
                return True
            log.warning("no standby took over")
            store.epoch = primacy.epoch
        with contextlib.suppress(SwitchError, StateError), service.changing("the controller was stopped"):
            jobs.end_all()
        service.events.append("controller-stopped", "the controller was stopped")
        return False
    finally:
        network.close()


def _reconcile(network: SwitchFleet, jobs: JobTable, elements: int) -> None:
    """Repair what an earlier controller left half done: it died while it wrote to switches."""
    try:
        network.reconcile(jobs.jobs.values())
    except SwitchError as error:
        log.warning("%s; the program is pushed again, and jobs at work are over", error)
        network.push(elements, anew=True)
        jobs.abandon()


def _sessions(switches: Switches, connect: Connector) -> tuple[SwitchFleet, bool]:
    """Sessions with all switches, and whether embedded ones had to be restarted, because a stranger held one.

    Raises:
        SwitchError: a switch cannot be had.
    """
    give_up = time.monotonic() + HELD_S
    while True:
        try:
            return SwitchFleet(switches.topology, connect, time.monotonic), False
        except ElectionError as error:
            if not switches.processes:
                raise
            if error.lasting or time.monotonic() > give_up:
                log.warning("%s; the switches are restarted", error)
                break
        time.sleep(HELD_RETRY_S)
    for name in list(switches.processes):
        switches.restart(name, threading.Event())
    return SwitchFleet(switches.topology, connect, time.monotonic), True


class Connector:
    """Opens sessions with switches.

    Args:
        own: whether the controller started them: others have no business there.
        take_over: whether the first session may end another controller's.
        certificates: for switches that other machines reach.
        primacy: only the primary may bid; and what an earlier primary won is its to take.
    """

    def __init__(self, own: bool, take_over: bool, certificates: CertificateFolder | None, primacy: Primacy) -> None:
        self._certificates = certificates
        self._own = own
        self._take_over = take_over
        self._primacy = primacy
        self._connected: set[str] = set()

    def __call__(self, switch: Switch, patience_s: float | None) -> P4RuntimeSession:
        take_over = self._own or (self._take_over and switch.name not in self._connected)
        certificates = None if is_local(switch.p4rt) else self._certificates
        former = self._primacy.former(switch.name)
        session = P4RuntimeSession(
            switch.p4rt, switch.device_id, patience_s, take_over, former, certificates, self._primacy.require
        )
        self._connected.add(switch.name)
        try:
            self._primacy.won(switch.name, session.election_id)
        except StateError as error:
            # Only a later primary would miss it, and only at a switch that is not this one's own.
            log.warning("%s", error)
        return session


def _run_http(
    listener: socket.socket,
    certificates: CertificateFolder | None,
    service: Service,
    clock: LeaseClock,
    supervisor: Supervisor,
    primacy: Primacy,
    told: threading.Event,
    record: Callable[[], None],
) -> None:
    server = Server(create_app(service), certificates, service.events.closed, told)
    server.take_signals()
    if came():
        raise KeyboardInterrupt  # again: a library that was interrupted, or Python itself, may have swallowed it
    ended = threading.Event()
    record()
    leases = threading.Thread(target=_expire, args=(service, clock, ended), name="leases", daemon=True)
    leases.start()
    supervisor.start()
    try:
        primacy.when_lost(server.end)
        server.serve_on(listener)
    finally:
        ended.set()
        supervisor.stop()
        leases.join(LAST_LOOK_S)


def _expire(service: Service, clock: LeaseClock, ended: threading.Event) -> None:
    """Look at the leases again and again. Whatever goes wrong, it goes on: leases would last for ever."""
    warning = RepeatedWarning(log)
    while not ended.wait(EXPIRE_EVERY_S):
        try:
            with service.changing() as jobs:
                service.require_primary()
                clock.tick()
                jobs.expire()
            warning.over()
        except DeposedError:
            continue  # It ends soon.
        except ControllerError as error:
            # /v1/status reports that the switch is gone; the jobs are dropped all the same.
            warning(error)
        except Exception:
            log.exception("looking at the leases failed; trying again")


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
