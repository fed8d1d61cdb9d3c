"""`controller start`: a controller, and embedded switches unless others are named."""

from __future__ import annotations

import json
import math
import os
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import click

from controller.commands.state_dir import state_dir_option
from controller.errors import ControllerError, StateError
from controller.jobs.job_table import LEASE_S, SHORTEST_LEASE_S
from controller.listen_address import parse_listen_address
from controller.primacy import BEAT_S, SHORTEST_SILENCE_S, SILENCE_S
from controller.rates import MOST_REQUESTS
from controller.state_file import STATE_FILE, State, create_folder, is_full, running
from controller.switches.program import load_artifact
from controller.target import TARGETS, V1MODEL
from controller.topology import Topology, single
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.certificate_folder import CertificateFolder, is_local
from hostlib.system.command import Command, json_option
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.process import StartError, start_and_wait_ready
from hostlib.system.user_file import parse_json, read_text
from hostlib.text import option_types as types
from hostlib.text.common_options import faults

START_TIMEOUT_S = 90.0
MOST_LEAVES, MOST_PORTS = 128, 510  # a switch has ports 1 to 510


def _racks(leaves: str) -> list[str] | None:
    """--tree as it was: 0 was a single switch."""
    return ["--racks", "1" if leaves == "0" else leaves]


@click.command(cls=Command, renamed={"--switch": "--p4rt"}, respelled={"--tree": _racks})
@click.option(
    "--http",
    type=types.ADDRESS_PORT,
    default="127.0.0.1:9339",
    show_default=True,
    help="Address of the HTTP API; port 0 takes a free one.",
)
@click.option(
    "--elements",
    type=types.N,
    help="Elements (int32) per packet: 64, 256, 1024 or 2048, of a Tofino 32 or 64. More than 256 need an MTU of 9000 "
    "on all links [default: 256, with a Tofino 64].",
)
@click.option(
    "--racks",
    type=types.Whole(1, MOST_LEAVES),
    default=1,
    show_default=True,
    help="Number of racks, with an embedded leaf switch each under a root; 1 is a single switch.",
)
@click.option(
    "--ports",
    type=types.Whole(1, MOST_PORTS),
    default=32,
    show_default=True,
    help="Ports for ranks of each embedded switch.",
)
@click.option(
    "--p4rt", type=types.ADDRESS_PORT, help="Use the running switch with this P4Runtime address [default: start one]."
)
@click.option(
    "--switch-ports",
    type=types.EXISTING_FILE,
    help='With --p4rt: JSON file {"PORT": "ADDRESS:PORT", ...} of where a rank on each port sends to.',
)
@click.option(
    "--device-id",
    type=types.DEVICE_ID,
    default=1,
    show_default=True,
    help="With --p4rt: the switch's P4Runtime device ID.",
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    default=V1MODEL.name,
    show_default=True,
    help="With --p4rt: what kind of switch it is (docs/targets.md).",
)
@click.option(
    "--topology", type=types.EXISTING_FILE, help="Use the running switches of this JSON file (docs/topology.md)."
)
@click.option(
    "--fabric-address",
    type=types.ADDRESS,
    default=FABRIC_ADDRESS,
    show_default=True,
    help="IPv4 address of the fabric.",
)
@click.option(
    "--lease",
    "lease_s",
    type=types.TIME,
    default=f"{LEASE_S:g}s",
    show_default=True,
    help="How long a rank may give the controller no sign of life before its place is lost.",
)
@click.option(
    "--rate",
    type=types.N,
    default=MOST_REQUESTS,
    show_default=True,
    help="Most HTTP requests a second of one address or rank, and joins of one tenant.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Take running switches from another controller, and replace another program.",
)
@click.option(
    "--certificates",
    type=types.FOLDER,
    help="Folder of `controller certificates`: speak TLS. Addresses that other machines reach need it.",
)
@click.option(
    "--trusted-network",
    is_flag=True,
    help="Speak without tokens and TLS also on such addresses, as in an emulated network that nobody else reaches.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="If the state folder has a controller, wait and take over when it dies. Needs --foreground.",
)
@click.option(
    "--primary-silence",
    "silence_s",
    type=types.TIME,
    default=f"{SILENCE_S:g}s",
    show_default=True,
    help="How long the controller that is waited for may show no sign of life.",
)
@faults("--loss", "--duplicate", "--reorder")
@click.option("--seed", type=types.SEED, default=0, show_default=True, help="Seed of the faults.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground until SIGTERM or Ctrl-C.")
@state_dir_option
@json_option
def start(
    foreground: bool,
    state_dir: Path,
    p4rt: str | None,
    switch_ports: Path | None,
    device_id: int,
    target: str,
    topology: Path | None,
    fabric_address: str,
    elements: int | None,
    racks: int,
    certificates: Path | None,
    trusted_network: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a controller, and an embedded P4 switch unless --p4rt or --topology name others.

    Faults (--loss and others) are those of embedded switches.

    \b
    Example
        controller start
        hostlib train --mechanism inagg+mcast
        controller stop
    """
    _require_legal(p4rt, switch_ports, topology, fabric_address)
    _require_at_least("--lease", options["lease_s"], SHORTEST_LEASE_S, "ranks give a sign of life every 5 s")
    beats = f"a primary gives a sign of life every {BEAT_S:g} s"
    _require_at_least("--primary-silence", options["silence_s"], SHORTEST_SILENCE_S, beats)
    if options["standby"] and not foreground:
        raise ControllerError("--standby needs --foreground, or controller run: a service manager keeps it")
    parse_listen_address(options["http"])
    switches = _running_switches(p4rt, switch_ports, device_id, target, topology, fabric_address)
    kinds = {V1MODEL} if switches is None else {each.kind for each in switches.switches}
    elements = min(kind.usual_elements for kind in kinds) if elements is None else elements
    for kind in kinds:
        load_artifact(elements, target=kind)
    _require_trust(options["http"], switches, certificates, trusted_network)
    require_installed(*CONTROLLER)
    if not foreground:
        _start_in_background(state_dir, as_json)
        return
    from controller.daemon import DaemonConfig, run_controller

    run_controller(
        DaemonConfig(
            state_dir=state_dir,
            topology=switches,
            fabric_address=fabric_address,
            elements=elements,
            tree=0 if racks == 1 else racks,
            certificates=None if certificates is None else CertificateFolder(certificates),
            trusted_network=trusted_network,
            **options,
        ),
        _print_json if as_json else lambda state: None,
    )


def _require_legal(switch: str | None, switch_ports: Path | None, topology: Path | None, fabric_address: str) -> None:
    """Before anything is started.

    Raises:
        ControllerError: the options do not go together, or that is no address.
    """
    if topology is not None and switch is not None:
        raise ControllerError("--p4rt and --topology both say which switches there are: give one")
    if switch is not None and switch_ports is None:
        raise ControllerError("--p4rt needs --switch-ports: a JSON file that says where ranks reach each port")
    if switch is None and switch_ports is not None:
        raise ControllerError("--switch-ports are of the switch that --p4rt names: give both")
    try:
        IPv4Address(fabric_address)
    except ValueError:
        raise ControllerError(
            f"--fabric-address {fabric_address!r} is not an IPv4 address (as in {FABRIC_ADDRESS})"
        ) from None


def _require_at_least(option: str, seconds: float, shortest_s: float, because: str) -> None:
    """Check that a time outlasts lost signs of life, and busy moments. Raises ControllerError."""
    if not shortest_s <= seconds < math.inf:
        raise ControllerError(f"{option} must be at least {shortest_s:g} s and finite, as {because}, not {seconds:g} s")


def _require_trust(http: str, switches: Topology | None, folder: Path | None, trusted_network: bool) -> None:
    """Check that whatever other machines reach speaks TLS.

    Raises:
        ControllerError: it would not.
        HostlibError: a certificate is missing.
    """
    if folder is not None:
        found = CertificateFolder(folder)
        _ = found.authority, found.server, found.client
        return
    if trusted_network:
        return
    remedy = "give --certificates FOLDER (controller certificates makes it)"
    if not is_local(http):
        raise ControllerError(f"other machines reach --http {http}: {remedy}")
    for switch in switches.switches if switches is not None else ():
        if not is_local(switch.p4rt):
            raise ControllerError(f"the switch {switch.name} at {switch.p4rt} is not on this machine: {remedy}")


def _running_switches(
    switch: str | None,
    switch_ports: Path | None,
    device_id: int,
    target: str,
    topology: Path | None,
    fabric_address: str,
) -> Topology | None:
    """The switches that run already; None when embedded ones are to be started."""
    if topology is not None:
        return Topology.read(topology)
    if switch is None:
        return None
    assert switch_ports is not None, "_require_legal() saw to it"
    try:
        ports = {int(number): str(address) for number, address in parse_json(read_text(switch_ports)).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise ControllerError(f'{switch_ports} is not a JSON object {{"PORT": "ADDRESS:PORT"}}: {error}') from error
    return single(switch, device_id, fabric_address, ports, target)


def _start_in_background(state_dir: Path, as_json: bool) -> None:
    """Run this very command again with --foreground, in a session of its own, and wait until it is ready.

    Whichever command it was: what follows its last word are its options.
    """
    earlier = State.read(state_dir)
    if earlier is not None and earlier.controller.alive:
        raise running(earlier.controller.pid, earlier.http)
    os.umask(0o077)  # the log is nobody else's business either
    create_folder(state_dir)
    if is_full(state_dir):  # the controller could not even log that
        raise StateError(f"the disk with {state_dir} is full: make room, or choose another --state-dir")
    log = state_dir / "controller.log"
    options = sys.argv[sys.argv.index("start") + 1 :]
    command = [sys.executable, "-m", "controller", "start", *options, "--foreground"]
    try:
        child, _ = start_and_wait_ready(
            command, state_dir / STATE_FILE, log, what="the controller", within_s=START_TIMEOUT_S, dies_by=None
        )
    except StartError as error:
        raise ControllerError(error.reason) from error
    state = State.read(state_dir)
    assert state is not None
    if as_json:
        _print_json(state)
        return
    click.echo(f"controller at {state.http} (pid {child.pid})")
    for switch in state.topology.switches:
        own = f", embedded, pid {state.processes[switch.name].pid}" if state.processes else ""
        click.echo(f"{switch.name} at {switch.p4rt}{own}")


def _print_json(state: State) -> None:
    """What is running, as `--json` prints it."""
    switches = [
        {"name": each.name, "p4rt": each.p4rt, "pid": state.processes[each.name].pid if state.processes else None}
        for each in state.topology.switches
    ]
    click.echo(json.dumps({"http": state.http, "pid": state.controller.pid, "switches": switches}))
    sys.stdout.flush()


PLACE = 10
COMMANDS = (start,)
