"""The `netfold-simple-switch` command: the embedded switch, with the options of BMv2's simple_switch_grpc.

Scripts that start BMv2 need no change but the command's name. `netfold switch --like-bmv2` is the same.

Source: behavioral-model, src/bm_sim/options_parse.cpp and targets/simple_switch_grpc/main.cpp.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from emulation.errors import EmulationError, PortError
from hostlib.errors import HostlibError
from hostlib.system.command import Command
from hostlib.system.exit_status import end_with
from hostlib.text import option_types as types

JSON_VERSION = "2.23"  # of p4c 1.2.5; older ones are taken, too
DROP_PORT = 511
TRACED = ("trace", "debug")  # log levels at which each packet's way is printed
LEVELS = (*TRACED, "info", "warn", "error", "off")
# Options of BMv2's without a counterpart here: with a value or not, and what to say where one is given.
IGNORED: dict[str, tuple[bool, str]] = {
    "--thrift-port": (True, "there is no Thrift server, so simple_switch_CLI cannot connect; use P4Runtime"),
    "--nanolog": (True, "events are not published; --log-console prints each packet's way"),
    "--notifications-addr": (True, "notifications are not published; P4Runtime's stream has digests"),
    "--debugger": (False, "there is no debugger; --log-console prints each packet's way"),
    "--debugger-addr": (True, "there is no debugger; --log-console prints each packet's way"),
    "--dump-packet-data": (True, "packets' bytes are not logged; --pcap writes them to files"),
    "--disable-swap": (False, "P4Runtime may still replace the program"),
    "--log-flush": (False, ""),  # no log is held back, no file rotated, and nothing has a limit
    "--log-file-max-size": (True, ""),
    "--log-file-max-files": (True, ""),
    "--max-port-count": (True, ""),
    "--max-mc-groups": (True, ""),
    "--max-l1-entries": (True, ""),
    "--max-l2-entries": (True, ""),
}
# Those that would change what packets do.
REFUSED = {
    "--use-files": "packets come by interfaces (-i PORT@INTERFACE) only, not from files",
    "--packet-in": "packets come by interfaces (-i PORT@INTERFACE) only, not by nanomsg",
    "--restore-state": "state cannot be restored from a file",
    "--dp-grpc-server-addr": "packets come by interfaces (-i PORT@INTERFACE) only, not by gRPC",
}


class SimpleSwitch(Command):
    """A command whose target-specific options may follow `--`, as BMv2's do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            args = args[:place] + args[place + 1 :]
        return super().parse_args(ctx, args)


def _without_counterpart(command: Any) -> Any:
    """Add IGNORED and REFUSED, which the help leaves out."""
    for name, (valued, why) in IGNORED.items():
        command = click.option(name, is_flag=not valued, hidden=True, expose_value=False, callback=_ignored(name, why))(
            command
        )
    for name, why in REFUSED.items():
        command = click.option(name, hidden=True, expose_value=False, callback=_refused(why))(command)
    return command


def _ignored(name: str, why: str) -> Any:
    def callback(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value and why:
            click.echo(f"{name} is ignored: {why}", err=True)

    return callback


def _refused(why: str) -> Any:
    def callback(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            raise click.BadParameter(why, ctx, param)

    return callback


def _interface(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """PORT@INTERFACE as `netfold switch` has it, past no taps: tcpdump at an interface sees what leaves."""
    found = []
    for value in values:
        number, at, interface = value.partition("@")
        if not (at and interface and number.isdecimal() and number.isascii()):
            raise click.BadParameter(f"{value!r} is not PORT@INTERFACE, as in 1@s1-eth1", ctx, param)
        found.append(f"{number}=eth:{interface},direct=no")
    return tuple(found)


@click.command("netfold-simple-switch", cls=SimpleSwitch, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("program", metavar="[JSON]", required=False, type=types.EXISTING_FILE)
@click.option("--no-p4", is_flag=True, help="Start without a program: a controller sets one over P4Runtime.")
@click.option(
    "-i", "--interface", "ports", multiple=True, metavar="PORT@INTERFACE", callback=_interface,
    help="Attach a network interface as a port; needs root. Repeat for more.",
)  # fmt: skip
@click.option("--device-id", type=types.DEVICE_ID, default=0, show_default=True, help="P4Runtime device ID.")
@click.option(
    "--grpc-server-addr", type=types.ADDRESS_PORT, default="0.0.0.0:9559", show_default=True,
    help="Address of the P4Runtime server.",
)  # fmt: skip
@click.option("--grpc-server-ssl", is_flag=True, help="Speak P4Runtime over TLS.")
@click.option("--grpc-server-cert", type=types.EXISTING_FILE, help="The server's certificate (PEM).")
@click.option("--grpc-server-key", type=types.EXISTING_FILE, help="Its key (PEM).")
@click.option("--grpc-server-cacert", type=types.EXISTING_FILE, help="Authority of clients' certificates (PEM).")
@click.option("--grpc-server-with-client-auth", is_flag=True, help="Only clients with such a certificate may connect.")
@click.option("--cpu-port", type=types.Whole(1, 510), help="Port for packet-ins and packet-outs [default: none].")
@click.option("--drop-port", type=types.N, default=DROP_PORT, show_default=True, help="Port of dropped packets.")
@click.option(
    "--priority-queues", type=types.Whole(1, 8), default=1, show_default=True,
    help="Queues of a port. Frames of a standard_metadata.priority without a queue are dropped.",
)  # fmt: skip
@click.option(
    "--pcap", type=types.FOLDER, is_flag=False, flag_value=".",
    help="Write INTERFACE_in.pcap and INTERFACE_out.pcap in this folder, or in the current one.",
)  # fmt: skip
@click.option("--log-console", is_flag=True, help="Print each packet's way through the program.")
@click.option("--log-file", type=types.FILE, help="Write each packet's way through the program to this file.")
@click.option(
    "-L", "--log-level", type=click.Choice(LEVELS), default="trace", show_default=True,
    help=f"Packets' ways are logged at {' and '.join(TRACED)}.",
)  # fmt: skip
@click.option("--json-version", is_flag=True, help="Print the newest version of BMv2's JSON that is known, and exit.")
@click.version_option(None, "-v", "--version", package_name="netfold", message="%(version)s")
@_without_counterpart
def simple_switch(
    program: Path | None,
    no_p4: bool,
    ports: tuple[str, ...],
    device_id: int,
    grpc_server_addr: str,
    grpc_server_ssl: bool,
    grpc_server_cert: Path | None,
    grpc_server_key: Path | None,
    grpc_server_cacert: Path | None,
    grpc_server_with_client_auth: bool,
    cpu_port: int | None,
    drop_port: int,
    priority_queues: int,
    pcap: Path | None,
    log_console: bool,
    log_file: Path | None,
    log_level: str,
    json_version: bool,
) -> None:
    """Run the embedded P4 switch with the options of BMv2's simple_switch_grpc.

    A program without its P4Info runs at once. Controllers find it when they set it themselves, as P4Runtime has it. BMv2's
    options for Thrift, nanomsg and its debugger are taken and ignored, each with a line that says so.

    \b
    Example: a Mininet script's switch
        netfold-simple-switch -i 1@s1-eth1 -i 2@s1-eth2 --device-id 0 --pcap pcaps --log-console basic.json \\
            -- --grpc-server-addr 0.0.0.0:50051 --cpu-port 255
    """
    if json_version:
        click.echo(JSON_VERSION)
        return
    if not no_p4 and program is None:
        raise click.UsageError("give the program's JSON, or --no-p4")
    if no_p4 and program is not None:
        click.echo(f"{program} is ignored: --no-p4 was given", err=True)
    if log_console and log_file is not None:
        raise click.UsageError("--log-console and --log-file exclude each other")
    if drop_port != DROP_PORT:
        raise click.UsageError(f"--drop-port {drop_port}: dropped packets go to port {DROP_PORT} here")
    if grpc_server_ssl and (grpc_server_cert is None or grpc_server_key is None):
        raise click.UsageError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if not grpc_server_ssl and (grpc_server_with_client_auth or grpc_server_cert or grpc_server_cacert):
        raise click.UsageError("certificates need --grpc-server-ssl")
    if grpc_server_with_client_auth and grpc_server_cacert is None:
        raise click.UsageError("--grpc-server-with-client-auth needs --grpc-server-cacert")
    if pcap is not None and not pcap.is_dir():
        raise PortError(f"--pcap {pcap}: there is no such folder")
    # gRPC's own log would say everything twice; it is read when grpc is first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from emulation.switch.daemon import SwitchConfig, run_switch
    from emulation.switch.ports.port_spec import Endpoint
    from emulation.switch.ports.registry import parse_port
    from emulation.switch.tls import Tls
    from hostlib.system.certificate_folder import Pair

    tls = None
    if grpc_server_ssl and grpc_server_cert is not None and grpc_server_key is not None:
        tls = Tls(Pair(grpc_server_cert, grpc_server_key), grpc_server_cacert, grpc_server_with_client_auth)
    config = SwitchConfig(
        p4rt=Endpoint.parse(grpc_server_addr),
        ports=[parse_port(text) for text in ports],
        device_id=device_id,
        program=None if no_p4 else program,
        cpu_port=cpu_port or 0,
        trace=(log_console or log_file is not None) and log_level in TRACED,
        tls=tls,
        captures=pcap,
        priorities=priority_queues,
    )
    if log_file is not None:
        _errors_go_to(log_file)
    elif log_console:
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())
    run_switch(config)


def _errors_go_to(path: Path) -> None:
    """The compiled program's log is on standard error."""
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), sys.stderr.fileno())


def run() -> None:
    """Entry point: errors of netfold become one line and exit code 1."""
    end_with(lambda: simple_switch(standalone_mode=False), EmulationError, HostlibError)
