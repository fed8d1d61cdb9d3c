"""`controller discover`: find the cables between running switches, and write a topology."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from controller.errors import ControllerError
from controller.switches.program import load_artifact
from controller.topology import MOST_PORT, Switch
from hostlib.system.certificate_folder import CertificateFolder
from hostlib.system.command import Command, json_option
from hostlib.system.extras import CONTROLLER, require_installed
from hostlib.system.process import write_whole
from hostlib.system.user_file import is_writable
from hostlib.text import option_types as types

if TYPE_CHECKING:
    from controller.switches.discovery import Found


@click.command(cls=Command)
@click.argument("switches", metavar="NAME=ADDRESS:PORT...", type=types.SWITCH, nargs=-1, required=True)
@click.option(
    "--cpu-port",
    type=types.Whole(1, MOST_PORT),
    required=True,
    help="The switches' port that P4Runtime's packets leave and come in by.",
)
@click.option("--cable-ports", type=types.PORTS, default="1-64", show_default=True, help="Ports that may have cables.")
@click.option(
    "--host-ports", type=types.PORTS, help="Ports for hosts, of switches with none below [default: none are written]."
)
@click.option("--device-id", type=types.DEVICE_ID, default=1, show_default=True, help="The switches' device ID.")
@click.option(
    "--elements", type=types.N, default=256, show_default=True, help="Program to load: 64, 256, 1024 or 2048."
)
@click.option("--certificates", type=types.FOLDER, help="Folder of `controller certificates`: speak TLS.")
@click.option("--take-over", is_flag=True, help="Also switches that have a controller or a program; their jobs end.")
@click.option(
    "--output", type=types.ANY_FILE, help="Write the topology to this file, for `controller start --topology`."
)
@json_option
def discover(
    switches: tuple[tuple[str, str], ...],
    cpu_port: int,
    cable_ports: list[int],
    host_ports: list[int] | None,
    device_id: int,
    elements: int,
    certificates: Path | None,
    take_over: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Find the cables between switches that have no controller yet, by packets through every port.

    NAME=ADDRESS:PORT is a switch and its P4Runtime address; the first one is the root. The switches get netfold's program. Where a port leads to a host, the host gets four packets that it does not know.

    \b
    Examples
        controller discover spine=192.0.2.1:9559 leaf0=192.0.2.2:9559 --cpu-port 510
        controller discover spine=192.0.2.1:9559 leaf0=192.0.2.2:9559 --cpu-port 510 \\
            --host-ports 1-16 --output topology.json
    """
    require_installed(*CONTROLLER)
    from controller.switches.discovery import ask_all, cables, listening, tree, with_hosts
    from controller.switches.session import P4RuntimeSession

    artifact = load_artifact(elements)
    names = [name for name, _ in switches]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ControllerError(f"two switches have the name {twice}")
    if output is not None and not is_writable(output):
        raise ControllerError(f"cannot write {output}: it is a folder, or its folder does not exist or is not writable")
    tls = None if certificates is None else CertificateFolder(certificates)
    with ExitStack() as stack:
        sessions = {}
        for name, p4rt in switches:
            sessions[name] = P4RuntimeSession(p4rt, device_id, take_over=take_over, certificates=tls)
            stack.callback(sessions[name].close)
        stack.enter_context(listening(sessions, artifact, cpu_port, cable_ports, take_over))
        found = cables(ask_all(sessions, elements, [port for port in cable_ports if port != cpu_port]))
    known = [Switch(name, p4rt, device_id, "", {}, cpu_port=cpu_port) for name, p4rt in switches]
    topology, left = tree(known, names[0], found)
    topology = with_hosts(topology, host_ports or ())
    if output is not None:
        write_whole(output, {"switches": topology.as_json()})
    if as_json:
        both = {"cables": [_described(each) for each in found], "unused": [_described(each) for each in left]}
        click.echo(json.dumps({"switches": topology.as_json(), **both}, indent=2))
        return
    for each in found:
        click.echo(f"{each}{'; it is not used' if each in left else ''}")
    if output is not None:
        click.echo(f"topology: {output}; controller start --topology {output}")


def _described(cable: Found) -> dict[str, object]:
    return {"one": asdict(cable.one), "other": asdict(cable.other), "both_ways": cable.both_ways}


PLACE = 55
COMMANDS = (discover,)
