"""`emulation switch`: the embedded P4 switch by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from emulation.errors import PortError
from emulation.switch.ports.registry import port_help
from hostlib.system.number_types import Finite


@click.command()
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="BMv2 JSON to start with (else a controller pushes one over P4Runtime).",
)
@click.option(
    "--p4info",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program's P4Info, in text format.",
)
@click.option(
    "--p4rt",
    default="127.0.0.1:9559",
    show_default=True,
    metavar="ADDRESS:PORT",
    help="Where the P4Runtime server listens; port 0 takes any.",
)
@click.option(
    "--device-id", type=click.IntRange(0, 2**64 - 1), default=1, show_default=True, help="P4Runtime device id."
)
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="N=WHERE[,NAME=VALUE...]",
    help=f"{port_help()} Repeat for more.",
)
@click.option("--udp-ports", default=0, metavar="COUNT", help="Ports 1..COUNT on free UDP ports of 127.0.0.1.")
@click.option("--trace", is_flag=True, help="Say on standard error what happens to each packet.")
@click.option(
    "--cpu-port",
    type=click.IntRange(0, 510),
    default=0,
    metavar="N",
    help="Port N is the controllers': packet-ins leave by it, packet-outs enter by it [default: none].",
)
@click.option(
    "--crc",
    "crcs",
    multiple=True,
    metavar="NAME=POLYNOMIAL,INITIAL,XOR,REFLECT_DATA,REFLECT_REMAINDER",
    help="Parameters of a custom CRC: NAME is a calculation of the program, or crc16_custom or crc32_custom for all of "
    "them; as crc16_custom=0x1021,0xffff,0,false,false. Repeat for more [default: CRC-16/ARC and CRC-32].",
)
@click.option(
    "--udp-destination",
    metavar="ADDRESS:PORT",
    help="The destination that packets of UDP ports seem to have [default: each port's own address].",
)
@click.option("--rate", metavar="RATE", help="Of frames that leave a port, as 100mbit [default: no limit].")
@click.option("--delay", metavar="TIME", help="Of a frame on each port's link, per direction, as 2ms [default: none].")
@click.option(
    "--queue",
    type=click.IntRange(1, 2**31 - 1),
    default=1000,
    show_default=True,
    help="Frames that wait for the rate; more are dropped.",
)
@click.option(
    "--burst",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    help="Bytes that may leave at once after a pause, in spite of the rate.",
)
@click.option("--loss", default=0.0, help="Probability that a packet is lost, per port and direction.")
@click.option("--duplicate", default=0.0, help="Probability that a packet comes twice.")
@click.option("--reorder", default=0.0, help="Probability that a packet is held back 0.2 to 2 ms.")
@click.option("--corrupt", default=0.0, help="Probability that one bit of a packet is flipped.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="Seed of the faults.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Written (JSON: pid, addresses) when everything listens; removed at the end.",
)
@click.option(
    "--exit-when-idle",
    type=Finite(min=0.0, min_open=True),
    metavar="SECONDS",
    help="End after so long without a controller and without packets.",
)
@click.option(
    "--stats-every",
    type=Finite(min=0.0, min_open=True),
    metavar="SECONDS",
    help="Print what each port and the program counted since it was loaded, one line of JSON each time and at the end.",
)
def switch(
    program: Path | None,
    p4info: Path | None,
    p4rt: str,
    device_id: int,
    ports: tuple[str, ...],
    udp_ports: int,
    cpu_port: int,
    trace: bool,
    crcs: tuple[str, ...],
    udp_destination: str | None,
    rate: str | None,
    delay: str | None,
    queue: int,
    burst: int,
    loss: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    seed: int,
    ready_file: Path | None,
    exit_when_idle: float | None,
    stats_every: float | None,
) -> None:
    """Run the embedded P4 switch in the foreground until SIGTERM or Ctrl-C.

    It executes BMv2 JSON (what p4c makes of a v1model program) as native code. A port is a network interface (needs
    root), or a UDP socket: a datagram that arrives there gets the Ethernet, IPv4 and UDP headers a NIC would have
    brought, and a frame that leaves has them taken off and goes to the address they name.

    \b
    Example: four ports, program pushed by a controller
        emulation switch --udp-ports 4 --p4rt 127.0.0.1:9559
    Example: a program from files, with faults
        emulation switch --program p4/build/netfold-v1model-64.json \\
            --p4info p4/build/netfold-v1model-64.p4info.txtpb --port 1=udp:127.0.0.1:9001 --loss 0.02 --seed 7
    Example: the same, with each packet's way through parser, tables and actions
        emulation switch --program p4/build/netfold-v1model-64.json \\
            --p4info p4/build/netfold-v1model-64.p4info.txtpb --port 1=udp:127.0.0.1:9001 --trace
    Example: two network interfaces, one of them a slow link
        emulation switch --port 1=veth1 --port 2=veth2,rate=100mbit,delay=2ms,queue=100
    Example: what its ports counted, once a second
        emulation switch --udp-ports 4 --stats-every 1 | jq '.ports."1".packets_in'
    """
    # gRPC's own log would say everything twice; it is read when grpc is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.switch.compiler.crc import CrcSetting
    from emulation.switch.daemon import SwitchConfig, run_switch
    from emulation.switch.ports.port_spec import (
        HIGHEST_PORT,
        Endpoint,
        Faults,
        PortSpec,
        Shape,
        parse_delay,
        parse_rate,
    )
    from emulation.switch.ports.registry import parse_port
    from emulation.switch.ports.udp import UdpSocket

    if (program is None) != (p4info is None):
        raise click.UsageError("--program and --p4info belong together")
    faults = Faults(loss, duplicate, reorder, seed, corrupt)
    shape = Shape(None if rate is None else parse_rate(rate), 0 if delay is None else parse_delay(delay), queue, burst)
    if udp_ports > HIGHEST_PORT:
        raise PortError(f"--udp-ports {udp_ports}: a switch has ports 0 to {HIGHEST_PORT}")
    specs = [parse_port(text, faults, shape) for text in ports]
    specs += [PortSpec(n, UdpSocket(Endpoint("127.0.0.1", 0)), faults, shape) for n in range(1, udp_ports + 1)]
    if not specs:
        raise PortError("a switch needs ports: give --udp-ports COUNT, --port N=INTERFACE or --port N=udp:ADDRESS:PORT")
    if cpu_port and any(spec.number == cpu_port for spec in specs):
        raise PortError(f"port {cpu_port} cannot be the controllers' and a link at once")
    run_switch(
        SwitchConfig(
            p4rt=Endpoint.parse(p4rt),
            ports=specs,
            device_id=device_id,
            program=program,
            p4info=p4info,
            destination=None if udp_destination is None else Endpoint.parse(udp_destination),
            ready_file=ready_file,
            exit_when_idle_s=exit_when_idle,
            cpu_port=cpu_port,
            trace=trace,
            crcs=tuple(map(CrcSetting.parse, crcs)),
            report_every_s=stats_every,
        ),
        lambda counted: _print_line(json.dumps(counted)),
    )


def _print_line(line: str) -> None:
    """For whoever reads along, as long as there is somebody."""
    try:
        click.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


PLACE = 40
COMMANDS = (switch,)
