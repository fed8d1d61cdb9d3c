"""`controller start`: a controller, and embedded switches unless others are named."""

from __future__ import annotations

import importlib.util
import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import click

from controller.commands.state_dir import state_dir_option
from controller.errors import ControllerError
from controller.listen_address import parse_listen_address
from controller.state_file import STATE_FILE, State, create_folder, running
from controller.switches.program import load_artifact
from controller.topology import Topology, single
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.number_types import PROBABILITY
from hostlib.system.process import StartError, start_and_wait_ready
from hostlib.system.user_file import parse_json, read_text

START_TIMEOUT_S = 90.0
MOST_LEAVES, MOST_PORTS = 128, 510  # a switch has ports 1 to 510


@click.command()
@click.option(
    "--http",
    default="127.0.0.1:9339",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where the HTTP API listens; port 0 takes any.",
)
@click.option("--elements", default=256, show_default=True, help="int32 values per packet: 64 or 256.")
@click.option(
    "--tree",
    type=click.IntRange(0, MOST_LEAVES),
    default=0,
    metavar="LEAVES",
    help="Embedded: so many leaf switches under a root [default: one].",
)
@click.option(
    "--ports",
    type=click.IntRange(1, MOST_PORTS),
    default=32,
    show_default=True,
    help="Embedded: ports for ranks, per switch.",
)
@click.option("--switch", metavar="ADDRESS:PORT", help="P4Runtime address of a running switch [default: start one].")
@click.option(
    "--switch-ports",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='With --switch: JSON file {"PORT": "ADDRESS:PORT", ...}, where a rank on each port sends to.',
)
@click.option("--device-id", default=1, show_default=True, help="With --switch: its P4Runtime device id.")
@click.option(
    "--topology",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Several running switches, as a JSON file (docs/topology.md).",
)
@click.option("--fabric-address", default=FABRIC_ADDRESS, show_default=True, help="The fabric's own IPv4 address.")
@click.option("--loss", type=PROBABILITY, default=0.0, help="Embedded switch: probability that a packet is lost.")
@click.option(
    "--duplicate", type=PROBABILITY, default=0.0, help="Embedded switch: probability that a packet comes twice."
)
@click.option(
    "--reorder", type=PROBABILITY, default=0.0, help="Embedded switch: probability that a packet is held back."
)
@click.option("--seed", default=0, help="Embedded switch: seed of these faults.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground until SIGTERM or Ctrl-C.")
@state_dir_option
def start(
    foreground: bool,
    state_dir: Path,
    switch: str | None,
    switch_ports: Path | None,
    device_id: int,
    topology: Path | None,
    fabric_address: str,
    **options: Any,
) -> None:
    """Start a controller and, unless --switch names one, an embedded P4 switch.

    \b
    Example
        controller start
        hostlib train --mechanism inagg+mcast
        controller stop
    """
    _require_legal(switch, switch_ports, topology, fabric_address)
    parse_listen_address(options["http"])
    load_artifact(options["elements"])
    switches = _running_switches(switch, switch_ports, device_id, topology, fabric_address)
    _require("fastapi", "uvicorn", "p4runtime_sh", "grpc")
    if not foreground:
        _start_in_background(state_dir)
        return
    from controller.daemon import DaemonConfig, run_controller

    run_controller(DaemonConfig(state_dir=state_dir, topology=switches, fabric_address=fabric_address, **options))


def _require_legal(switch: str | None, switch_ports: Path | None, topology: Path | None, fabric_address: str) -> None:
    """Before anything is started.

    Raises:
        ControllerError: the options do not go together, or that is no address.
    """
    if topology is not None and switch is not None:
        raise ControllerError("--switch and --topology both say which switches there are: give one")
    if switch is not None and switch_ports is None:
        raise ControllerError("--switch needs --switch-ports: a JSON file that says where ranks reach each port")
    if switch is None and switch_ports is not None:
        raise ControllerError("--switch-ports are of the switch that --switch names: give both")
    try:
        IPv4Address(fabric_address)
    except ValueError:
        raise ControllerError(
            f"--fabric-address {fabric_address!r} is not an IPv4 address (as in {FABRIC_ADDRESS})"
        ) from None


def _running_switches(
    switch: str | None, switch_ports: Path | None, device_id: int, topology: Path | None, fabric_address: str
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
    return single(switch, device_id, fabric_address, ports)


def _require(*modules: str) -> None:
    absent = [m for m in modules if importlib.util.find_spec(m) is None]
    if absent:
        raise ControllerError(f"not installed: {', '.join(absent)} (pip install 'netfold[controller,emulation]')")


def _start_in_background(state_dir: Path) -> None:
    """Run this very command again with --foreground, in a session of its own, and wait until it is ready.

    Whichever command it was: what follows its last word are its options.
    """
    earlier = State.read(state_dir)
    if earlier is not None and earlier.controller.alive:
        raise running(earlier)
    create_folder(state_dir)
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
    click.echo(f"controller at {state.http} (pid {child.pid})")
    for switch in state.topology.switches:
        own = f", embedded, pid {state.processes[switch.name].pid}" if state.processes else ""
        click.echo(f"{switch.name} at {switch.p4rt}{own}")


PLACE = 10
COMMANDS = (start,)
