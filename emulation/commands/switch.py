"""`emulation switch`: the embedded P4 switch by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from emulation.errors import PortError
from emulation.switch.ports.registry import port_help
from hostlib.system.certificate_folder import CertificateFolder
from hostlib.system.command import Command, json_option
from hostlib.text import option_types as types
from hostlib.text.common_options import faults


class SwitchCommand(Command):
    """`--like-bmv2` first: the other command's options follow."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [LIKE_BMV2]:
            from emulation.simple_switch import simple_switch

            return simple_switch.make_context(f"{info_name} {LIKE_BMV2}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


LIKE_BMV2 = "--like-bmv2"


@click.command(
    cls=SwitchCommand, renamed={"--rate": "--bandwidth", "--trace": "--trace-packets", "--udp-ports": "--ports"}
)
@click.option(
    "--program",
    type=types.EXISTING_FILE,
    help="P4 program to start with, as BMv2 JSON [default: a controller pushes one over P4Runtime].",
)
@click.option(
    "--p4info",
    type=types.EXISTING_FILE,
    help="The program's P4Info, in text format [default: controllers find no program].",
)
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
@click.option("--port", "ports", type=types.PORT, multiple=True, help=f"{port_help()} Repeat for more ports.")
@click.option("--ports", "udp_ports", type=types.N, default=0, help="Make ports 1 to N on free UDP ports of 127.0.0.1.")
@click.option(
    LIKE_BMV2,
    is_flag=True,
    help="Comes first: what follows are the options of BMv2's simple_switch_grpc, as `netfold-simple-switch` takes them.",
)
@click.option("--trace-packets", "trace", is_flag=True, help="Print on standard error what happens to each packet.")
@click.option(
    "--cpu-port",
    type=types.Whole(0, 510),
    default=0,
    help="Port for packet-ins and packet-outs [default: none].",
)
@click.option(
    "--crc",
    "crcs",
    type=types.CRC,
    multiple=True,
    help="Parameters of a custom CRC, with commas: polynomial, initial value, XOR, reflect data, reflect remainder. NAME "
    "is a calculation of the program, or crc16_custom or crc32_custom for all. Repeat for more "
    "[default: CRC-16/ARC and CRC-32].",
)
@click.option(
    "--udp-destination",
    type=types.ADDRESS_PORT,
    help="Destination that packets of UDP ports seem to have [default: each port's own address].",
)
@click.option(
    "--bandwidth", "rate", type=types.RATE.typed(), help="Bandwidth of each port's egress [default: no limit]."
)
@click.option("--delay", type=types.TIME, help="Delay of each port's link, in each direction [default: none].")
@click.option(
    "--queue",
    type=types.Whole(1, 2**31 - 1),
    default=1000,
    show_default=True,
    help="Frames that each port's egress queue holds; more are dropped.",
)
@click.option(
    "--mark",
    type=types.FRAMES,
    help="Mark frames with ECN (RFC 3168) that find FROM frames or more in a port's queue: some, every tenth near TO, and "
    "from TO on all. Of senders without ECN every tenth is dropped at most. Needs a bandwidth [default: none].",
)
@click.option(
    "--burst",
    type=types.SIZE,
    default="0",
    show_default=True,
    help="Size of a burst that may leave faster than the bandwidth, after a pause.",
)
@click.option(
    "--priority-queues",
    type=types.Whole(1, 8),
    default=8,
    show_default=True,
    help="Queues of each port with a bandwidth. The program's standard_metadata.priority says which one a frame joins; the "
    "highest goes first, and where there is no such queue the frame is dropped.",
)
@click.option(
    "--trust-dscp",
    is_flag=True,
    help="Have frames that the program gives no priority join the queue of their DSCP's class: its first three bits "
    "(CS1 to CS7, RFC 2474).",
)
@click.option(
    "--pcap",
    "captures",
    type=types.FOLDER,
    help="Write the frames of each port to NAME_in.pcap and NAME_out.pcap in this folder.",
)
@faults("--loss", "--duplicate", "--reorder", "--corrupt")
@click.option("--seed", type=types.SEED, default=0, show_default=True, help="Seed of the faults.")
@click.option(
    "--ready-file",
    type=types.FILE,
    help="Write addresses and process ID (JSON) to this file once everything listens; removed at the end.",
)
@click.option(
    "--exit-when-idle",
    type=types.TIME_ABOVE_0,
    help="Exit after this long without a controller and without packets [default: never].",
)
@click.option(
    "--stats-every",
    type=types.TIME_ABOVE_0,
    help="Print the counters of ports and program this often and at the end, a line of JSON each time.",
)
@json_option
def switch(
    program: Path | None,
    p4info: Path | None,
    p4rt: str,
    device_id: int,
    certificates: Path | None,
    ports: tuple[str, ...],
    udp_ports: int,
    like_bmv2: bool,
    cpu_port: int,
    trace: bool,
    crcs: tuple[str, ...],
    udp_destination: str | None,
    rate: str | None,
    delay: float | None,
    queue: int,
    mark: tuple[int, int] | None,
    burst: int,
    loss: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    seed: int,
    priority_queues: int,
    trust_dscp: bool,
    captures: Path | None,
    ready_file: Path | None,
    exit_when_idle: float | None,
    stats_every: float | None,
    as_json: bool,
) -> None:
    """Run the embedded P4 switch in the foreground, until SIGTERM or Ctrl-C.

    The switch executes BMv2 JSON, which p4c compiles from a v1model program, as native code. A port is a network interface
    (needs root), or a UDP socket. An arriving datagram gets Ethernet, IPv4 and UDP headers, as if from a NIC. A leaving
    frame loses them and goes to the address they name. With --json, the switch prints what
    --ready-file holds, in one line.

    \b
    Example: four ports, program pushed by a controller
        emulation switch --ports 4 --p4rt 127.0.0.1:9559
    Example: a program from files, with faults
        emulation switch --program p4/build/netfold-v1model-64.json \\
            --p4info p4/build/netfold-v1model-64.p4info.txtpb --port 1=udp:127.0.0.1:9001 --loss 0.02 --seed 7
    Example: the same, with each packet's way through parser, tables and actions
        emulation switch --program p4/build/netfold-v1model-64.json \\
            --p4info p4/build/netfold-v1model-64.p4info.txtpb --port 1=udp:127.0.0.1:9001 --trace-packets
    Example: two network interfaces, one of them a slow link
        emulation switch --port 1=veth1 --port 2=veth2,bandwidth=100mbit,delay=2ms,queue=100
    Example: the same, whose queue asks senders to slow down before it is full
        emulation switch --port 1=veth1 --port 2=veth2,bandwidth=100mbit,delay=2ms,queue=100,mark=30:90
    Example: CRC-16/IBM-3740 in place of CRC-16/ARC
        emulation switch --ports 4 --crc crc16_custom=0x1021,0xffff,0,false,false
    Example: what its ports counted, once a second
        emulation switch --ports 4 --stats-every 1s | jq '.ports."1".packets_in'
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
    from emulation.switch.tls import Tls

    if like_bmv2:
        raise click.UsageError(f"{LIKE_BMV2} comes first, before all other options")
    if program is None and p4info is not None:
        raise click.UsageError("--p4info is of a --program")
    asked_faults = Faults(loss, duplicate, reorder, seed, corrupt)
    shape = Shape(
        None if rate is None else parse_rate(rate),
        0 if delay is None else parse_delay(f"{delay * 1e9:.0f}ns"),
        queue,
        burst,
        mark,
    )
    if udp_ports > HIGHEST_PORT:
        raise PortError(f"--ports {udp_ports}: a switch has ports 0 to {HIGHEST_PORT}")
    specs = [parse_port(text, asked_faults, shape) for text in ports]
    specs += [PortSpec(n, UdpSocket(Endpoint("127.0.0.1", 0)), asked_faults, shape) for n in range(1, udp_ports + 1)]
    if not specs:
        raise PortError("a switch needs ports: give --ports N, --port N=INTERFACE or --port N=udp:ADDRESS:PORT")
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
            tls=None if certificates is None else Tls.of(CertificateFolder(certificates)),
            captures=captures,
            priorities=priority_queues,
            trust_dscp=trust_dscp,
        ),
        lambda counted: _print_line(json.dumps(counted)),
        (lambda ready: _print_line(json.dumps(ready))) if as_json else None,
    )


def _print_line(line: str) -> None:
    """For whoever reads along, as long as there is somebody."""
    try:
        click.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


PLACE = 40
COMMANDS = (switch,)
