"""`emulation tofino-model`: the model of Tofino 1 as a switch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from emulation.errors import PortError
from hostlib.system.certificate_folder import CertificateFolder
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.common_options import faults


@click.command(cls=Command)
@click.option(
    "--p4rt",
    type=types.ADDRESS_PORT,
    default="127.0.0.1:9559",
    show_default=True,
    help="Address of the P4Runtime server; port 0 takes a free one.",
)
@click.option(
    "--device-id", type=types.DEVICE_ID, default=1, show_default=True, help="P4Runtime device ID of the switch."
)
@click.option(
    "--certificates",
    type=types.FOLDER,
    help="Folder of `controller certificates`: speak P4Runtime over TLS, to controllers with its certificates only.",
)
@click.option(
    "--port",
    "ports",
    type=types.PORT,
    multiple=True,
    help="Port N=INTERFACE (needs root) or N=udp:ADDRESS:PORT, with loss=P, duplicate=P and seed=N. Repeat for more.",
)
@click.option("--ports", "udp_ports", type=types.N, default=0, help="Make ports 1 to N on free UDP ports of 127.0.0.1.")
@click.option(
    "--harness",
    type=types.COMMAND,
    default="tofino_test_harness",
    show_default=True,
    help="The model's program, of p4lang/open-p4studio (docs/tofino.md).",
)
@click.option(
    "--udp-destination",
    type=types.ADDRESS_PORT,
    help="Destination that packets of UDP ports seem to have [default: each port's own address].",
)
@faults("--loss", "--duplicate")
@click.option("--seed", type=types.SEED, default=0, show_default=True, help="Seed of the faults.")
@click.option(
    "--ready-file",
    type=types.FILE,
    help="Write addresses and process ID (JSON) to this file once everything listens; removed at the end.",
)
@json_option
def tofino_model(
    p4rt: str,
    device_id: int,
    certificates: Path | None,
    ports: tuple[str, ...],
    udp_ports: int,
    harness: str,
    udp_destination: str | None,
    loss: float,
    duplicate: float,
    seed: int,
    ready_file: Path | None,
    as_json: bool,
) -> None:
    """Run the model of Tofino 1 as a switch in the foreground, until SIGTERM or Ctrl-C.

    A controller pushes the program: `controller start --target tofino`. The model takes about ten milliseconds per
    packet, so use it to see that a chip does the same as the embedded switch, not how fast. With --json, it prints what
    --ready-file holds, in one line.

    \b
    Example: four ports, and a controller for them
        emulation tofino-model --ports 4 --json
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.switch.ports.port_spec import Endpoint, Faults, PortSpec, Shape
    from emulation.switch.ports.registry import parse_port
    from emulation.switch.ports.udp import UdpSocket
    from emulation.switch.tls import Tls
    from emulation.tofino.model_daemon import MOST_PORT, ModelConfig, run_model

    asked_faults = Faults(loss, duplicate, seed=seed)
    specs = [parse_port(text, asked_faults, Shape()) for text in ports]
    specs += [PortSpec(n, UdpSocket(Endpoint("127.0.0.1", 0)), asked_faults) for n in range(1, udp_ports + 1)]
    if not specs:
        raise PortError("a switch needs ports: give --ports N, --port N=INTERFACE or --port N=udp:ADDRESS:PORT")
    for spec in specs:
        if not 0 <= spec.number <= MOST_PORT:
            raise PortError(f"port {spec.number}: the ports of a chip's first pipe are 0 to {MOST_PORT}")
    run_model(
        ModelConfig(
            p4rt=Endpoint.parse(p4rt),
            ports=specs,
            device_id=device_id,
            command=harness,
            destination=None if udp_destination is None else Endpoint.parse(udp_destination),
            ready_file=ready_file,
            tls=None if certificates is None else Tls.of(CertificateFolder(certificates)),
        ),
        (lambda ready: click.echo(json.dumps(ready))) if as_json else None,
    )


PLACE = 45
COMMANDS = (tofino_model,)
