"""The `emulation` command."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from emulation.errors import EmulationError, PortError
from hostlib.errors import HostlibError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Real packets through a real P4 program, on one machine and without root.

    \b
    emulation demo         train one model over several mechanisms and compare
    emulation switch       run the embedded P4 switch by hand
    emulation conformance  run p4c's own v1model tests through the embedded switch
    emulation bench        measure how fast it is here
    emulation topology     say what a declared network is made of
    emulation clean        remove what killed runs left behind
    """


@main.command()
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
@click.option("--device-id", default=1, show_default=True, help="P4Runtime device id.")
@click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="N=WHERE[,NAME=VALUE...]",
    help="Switch port N, on a network interface (INTERFACE or eth:INTERFACE) or on a UDP socket: udp:ADDRESS:PORT to a "
    "host, wire:ADDRESS:PORT to another switch (its other end after a comma, unless that one sends first). NAMEs are "
    "rate, delay, queue, burst, loss, duplicate, reorder, corrupt and seed: as the options, for this port alone; and "
    "direct=no: what leaves the interface passes its taps (tcpdump), and is slower. Repeat for more.",
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
@click.option("--queue", default=1000, show_default=True, help="Frames that wait for the rate; more are dropped.")
@click.option("--burst", default=0, help="Bytes that may leave at once after a pause, in spite of the rate.")
@click.option("--loss", default=0.0, help="Probability that a packet is lost, per port and direction.")
@click.option("--duplicate", default=0.0, help="Probability that a packet comes twice.")
@click.option("--reorder", default=0.0, help="Probability that a packet is held back 0.2 to 2 ms.")
@click.option("--corrupt", default=0.0, help="Probability that one bit of a packet is flipped.")
@click.option("--seed", default=0, help="Seed of the faults.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Written (JSON: pid, addresses) when everything listens; removed at the end.",
)
@click.option(
    "--exit-when-idle",
    type=float,
    metavar="SECONDS",
    help="End after so long without a controller and without packets.",
)
@click.option(
    "--stats-every",
    type=click.FloatRange(min=0.0, min_open=True),
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
    from emulation.switch.language.crc import CrcSetting
    from emulation.switch.port import Endpoint, Faults, PortSpec, Shape, parse_delay, parse_rate
    from emulation.switch.process import SwitchConfig, run_switch

    if (program is None) != (p4info is None):
        raise click.UsageError("--program and --p4info belong together")
    faults = Faults(loss, duplicate, reorder, seed, corrupt)
    shape = Shape(parse_rate(rate) if rate else None, parse_delay(delay) if delay else 0, queue, burst)
    specs = [PortSpec.parse(text, faults, shape) for text in ports]
    specs += [PortSpec(n, Endpoint("127.0.0.1", 0), faults=faults, shape=shape) for n in range(1, udp_ports + 1)]
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
            destination=Endpoint.parse(udp_destination) if udp_destination else None,
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


@main.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where result.json, the runs' results and logs go.",
)
@click.option(
    "--mechanisms",
    default="inagg+mcast,ring,gloo",
    show_default=True,
    metavar="A,B,...",
    help="What to compare; see `hostlib mechanisms`.",
)
@click.option("--model", default="lenet", show_default=True, help="lenet or vgg.")
@click.option("--world-size", default=4, show_default=True, help="Workers.")
@click.option("--epochs", type=int, help="Epochs per run [default: those of `hostlib train`].")
@click.option("--seed", default=1, show_default=True, help="Of weights, data and faults.")
@click.option("--elements", default=256, show_default=True, help="int32 values per packet: 64 or 256.")
@click.option("--loss", default=0.0, help="Probability that a packet is lost, per switch port and direction.")
@click.option("--duplicate", default=0.0, help="Probability that a packet comes twice.")
@click.option("--reorder", default=0.0, help="Probability that a packet is held back 0.2 to 2 ms.")
@click.option(
    "--deadline", "deadline_s", default=30.0, show_default=True, help="Seconds without progress before a run ends."
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of the tables.")
def demo(mechanisms: str, as_json: bool, **options: Any) -> None:
    """Train one model over several mechanisms through a P4 switch of its own, and compare.

    Starts controller and switch on free ports, trains with the same seeds under each mechanism, checks that all ranks
    end with the same weights and that the switch completed exactly the predicted slots, and stops what it started.

    \b
    Example: the same weights in spite of a bad network
        emulation demo --loss 0.02 --duplicate 0.02 --reorder 0.02
    """
    from emulation.demo import DemoConfig, run_demo
    from emulation.report import print_demo

    signal.signal(signal.SIGTERM, _interrupt)
    config = DemoConfig(mechanisms=tuple(name for name in mechanisms.split(",") if name), **options)
    result = run_demo(config, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(result.as_json(), indent=2))
    else:
        print_demo(result)
        click.echo(f"result: {config.output / 'result.json'}")


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", default="", metavar="TEXT", help="Only programs with this in their name.")
@click.option("--jobs", type=click.IntRange(1), help="Tests at once [default: one per core].")
@click.option("--json", "as_json", is_flag=True, help="Print passed, unsupported and failed as JSON.")
def conformance(folder: Path, only: str, jobs: int | None, as_json: bool) -> None:
    """Run a folder of v1model tests through the embedded switch.

    FOLDER holds programs NAME-bmv2.p4 with a test NAME-bmv2.stf beside them, as p4c's testdata/p4_16_samples does. Each
    is compiled with p4c-bm2-ss, loaded, and driven with its test's packets. A program that uses what this switch does
    not run is unsupported, with the construct; a different answer is a failure, and so is a crash. Exit code 1 if any
    failed.
    """
    from emulation.conformance import cases, run
    from emulation.report import print_conformance

    programs = [path for path in cases(folder) if only in path.stem]
    if not programs:
        raise EmulationError(f"no program in {folder} has {only!r} in its name")
    progress = Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True))
    with progress:
        bar = progress.add_task("conformance", total=len(programs))
        report = run(programs, lambda _: progress.advance(bar), jobs)
    if as_json:
        click.echo(json.dumps(asdict(report), indent=1))
    else:
        print_conformance(report)
    if report.failed:
        sys.exit(1)


@main.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="How long each of the measurements takes, about.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def bench(seconds: float, as_json: bool) -> None:
    """Measure the embedded switch on this machine; needs root, for a network namespace of its own.

    One aggregation packet in process; aggregated elements per second between network interfaces, four ranks, beside
    BMv2 where simple_switch_grpc is on PATH; and the gradient bits per second of two ranks on loopback.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.bench import print_bench, run_bench

    signal.signal(signal.SIGTERM, _interrupt)
    result = run_bench(seconds, Console(stderr=True, highlight=False))
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    else:
        print_bench(result)


@main.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--workers", default=4, show_default=True, help="Hosts that train.")
@click.option("--servers", default=0, show_default=True, help="Hosts that sum for others, on the root switch.")
@click.option("--bandwidth", metavar="RATE", help="Of a host's link, as 25gbit [default: as fast as it goes].")
@click.option("--dilation", default=1.0, show_default=True, help="In a time that runs so many times slower.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the tables.")
def topology(file: Path, workers: int, servers: int, bandwidth: str | None, dilation: float, as_json: bool) -> None:
    """Say what the table [topology] of FILE (TOML) means: nodes, links, rates.

    \b
    Example: a leaf-spine network whose uplinks are half of what its workers need
        printf '[topology]\\nkind = "leaf-spine"\\noversubscription = 2\\n' > network.toml
        emulation topology network.toml --workers 16 --bandwidth 25gbit
    """
    from emulation.switch.port import parse_rate
    from emulation.topology.declaration import declare, read_table
    from emulation.topology.report import print_topology

    rate = None if bandwidth is None else parse_rate(bandwidth)
    declared = declare(read_table(file), workers, servers, rate).dilated(dilation)
    if as_json:
        click.echo(json.dumps(declared.as_json(), indent=2))
    else:
        print_topology(declared)


@main.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--all", "everything", is_flag=True, help="Of runs that are alive, too: they are ended first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def clean(dry_run: bool, everything: bool, as_json: bool) -> None:
    """Remove what runs of this user's that are dead, killed perhaps, left on this machine.

    Each run writes down what it makes: processes with their start times, network namespaces, interfaces, its folder.
    That is removed, and nothing else.
    """
    from emulation.topology.ledger import clean as remove_all
    from emulation.topology.report import print_removed

    removed, left = remove_all(everything, dry_run)
    if as_json:
        click.echo(json.dumps({"removed": [asdict(each) for each in removed], "alive": left}, indent=2))
    else:
        print_removed(removed, left, dry_run)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    try:
        main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as wrong:
        wrong.show()
        sys.exit(wrong.exit_code)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (EmulationError, HostlibError) as wrong:
        click.echo(f"error: {wrong}", err=True)
        sys.exit(1)
