"""The processes of a fabric: switches of each kind, and their controller."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from controller.target import V1MODEL
from emulation.networks import links
from emulation.networks.addressing import Started
from emulation.networks.cleanup import CleanupRecord
from emulation.switch.ports.packet_socket import PacketSocket
from emulation.switch.ports.port_spec import parse_rate
from emulation.switch.ports.registry import parse_place
from emulation.tofino.harness import HARNESS
from hostlib.system.process import StartError, Starting, start
from hostlib.topology.topology import QUEUE_FRAMES, Cable, TopologyError

STOP_S = 5.0
BMV2 = "simple_switch_grpc"


class SwitchKind(Enum):
    """Kinds of switch."""

    EMBEDDED = "embedded"
    BMV2 = "bmv2"
    TOFINO_MODEL = "tofino-model"


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a switch, and its effects on the cable's frames.

    Attributes:
        where: WHERE of `emulation switch --port`.
        options: rate, delay, loss, queue, mark and others, as `emulation switch --port` takes them.
    """

    number: int
    where: str
    options: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> str:
        return ",".join([f"{self.number}={self.where}", *(f"{name}={value}" for name, value in self.options.items())])


def end_of(cable: Cable, lossy: bool = True) -> dict[str, str]:
    """Options of a port with this cable.

    Args:
        lossy: this end applies the link's delay and loss, for both directions.
    """
    options = {"queue": str(cable.queue)}
    if cable.mark is not None:
        options["mark"] = f"{cable.mark[0]}:{cable.mark[1]}"
    if cable.rate_bits_s is not None:
        options["bandwidth"] = f"{max(cable.rate_bits_s, 1):.0f}bit"
    if lossy and cable.delay_ns:
        options["delay"] = f"{cable.delay_ns}ns"
    if lossy and cable.loss:
        options["loss"] = f"{cable.loss:.12f}"
    return options


@dataclass(frozen=True, slots=True)
class SwitchProcesses:
    """Starts the processes of a network's switches and controller, and records them.

    Attributes:
        space: a network namespace, as hostlib.system.network_namespace.inside takes it; None for this process's own.
    """

    record: CleanupRecord
    space: str | None = None
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str], ready: Path) -> Starting:
        """Start a process that ends with this one in any case, and record it; it logs to NAME.log.

        Args:
            ready: the file that it writes when it is ready.

        Raises:
            TopologyError: a required program is missing.
        """
        log = self.record.folder / f"{name}.log"
        try:
            starting = start(command, ready, log, what=name, space=self.space)
        except StartError as error:
            raise TopologyError(str(error)) from error
        self.children.append(starting.child)
        self.record.process(starting.child.pid, name)
        return starting

    def stop(self) -> None:
        """Stop all processes; the controller, started last, goes first and gracefully: it would miss its switches."""
        for child in self.children[-1:]:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()
        self.children.clear()


def require_able(kind: SwitchKind) -> None:
    """Check that a kind of switch is installed.

    Raises:
        TopologyError: it is not.
    """
    if kind is SwitchKind.EMBEDDED:
        return
    wanted = BMV2 if kind is SwitchKind.BMV2 else HARNESS
    if shutil.which(wanted) is None:
        where = "docs/p4c.md says where it is packaged" if kind is SwitchKind.BMV2 else "docs/tofino.md"
        raise TopologyError(f"switches of kind {kind.value} need {wanted} on PATH: {where}")


def ready(starting: Starting) -> dict[str, Any]:
    """Wait for a process; returns the contents of its ready file.

    Raises:
        TopologyError: it ended, with its own message, or takes too long.
    """
    try:
        return starting.wait()
    except StartError as error:
        raise TopologyError(str(error)) from error


def started(switch: Starting) -> Started:
    """Wait until a switch is ready.

    Raises:
        TopologyError: it did not start.
    """
    described = ready(switch)
    if not described:
        return Started(f"unix:{switch.ready}", 1)
    ports = {int(n): str(end) for n, end in described["ports"].items()}
    return Started(described["p4rt"], described["device_id"], ports, described.get("target", V1MODEL.name))


def start_switch(
    processes: SwitchProcesses,
    name: str,
    kind: SwitchKind,
    ports: Iterable[Port],
    seed: int,
    options: Sequence[str] = (),
) -> Starting:
    """Start a switch; `options` are further ones of `emulation switch`, or of `emulation tofino-model`."""
    if kind is SwitchKind.BMV2:
        return start_bmv2(processes, name, list(ports))
    if kind is SwitchKind.TOFINO_MODEL:
        ports = [limited(processes, name, kind, port, ("loss", "duplicate", "seed")) for port in ports]
        return _start_own("tofino-model", processes, name, ports, seed, options)
    # As switches of data centres do for what others wait for, such as RoCE's congestion notifications.
    return _start_own("switch", processes, name, ports, seed, [*options, "--trust-dscp"])


def _start_own(
    what: str, processes: SwitchProcesses, name: str, ports: Iterable[Port], seed: int, options: Sequence[str]
) -> Starting:
    file = processes.record.folder / f"{name}.json"
    command = [sys.executable, "-m", "emulation", what, "--p4rt", "127.0.0.1:0", "--ready-file", str(file)]
    command += ["--seed", str(seed), *options]
    command += [word for port in ports for word in ("--port", port.described())]
    return processes.start(name, command, file)


def limited(processes: SwitchProcesses, name: str, kind: SwitchKind, port: Port, able: Sequence[str] = ()) -> Port:
    """Have the kernel shape a port's interface; returns the port with what is left for the switch.

    Args:
        able: the options that the switch itself takes.

    Raises:
        TopologyError: it is not an interface, or has other options.
    """
    unable = [option for option in port.options if option not in ("bandwidth", "queue", *able)]
    place = parse_place(port.where)
    if unable or not isinstance(place, PacketSocket):
        raise TopologyError(
            f"{name}, port {port.described()}: {kind.value} needs interfaces and does not support "
            f"{' or '.join(unable)}: leave that out, or use switches of kind embedded"
        )
    if "bandwidth" in port.options:
        queue = int(port.options.get("queue", QUEUE_FRAMES))
        links.limit(processes.space, [place.interface], parse_rate(port.options["bandwidth"]), queue)
    return Port(port.number, place.interface, {key: port.options[key] for key in able if key in port.options})


def start_bmv2(processes: SwitchProcesses, name: str, ports: Sequence[Port]) -> Starting:
    """Start BMv2; the kernel shapes its interfaces.

    Raises:
        TopologyError: a port is not an interface, or has options that BMv2 does not support.
    """
    command = [BMV2, "--no-p4", "--device-id", "1", "--log-level", "off"]
    # Any free port for its Thrift server: by default all switches of a network namespace use the same one.
    command += ["--thrift-port", "0"]
    for port in ports:
        command += ["-i", f"{port.number}@{limited(processes, name, SwitchKind.BMV2, port).where}"]
    socket = processes.record.folder / f"{name}.p4rt"
    command += ["--", "--grpc-server-addr", f"unix:{socket}"]
    return processes.start(name, command, socket)


def start_controller(
    processes: SwitchProcesses, address: str, described: dict[str, Any], elements: int | None = None
) -> str:
    """Start the controller of running switches (addressing.for_controller), and wait until it is ready; returns its
    URL.

    Args:
        elements: of the program that it loads; None for the usual one.

    Raises:
        TopologyError: it did not start.
    """
    folder = processes.record.folder
    topology, state = folder / "topology.json", folder / "controller"
    topology.write_text(json.dumps(described))
    command = [sys.executable, "-m", "controller", "start", "--foreground", "--http", f"{address}:0"]
    command += ["--topology", str(topology), "--state-dir", str(state), "--trusted-network"]
    if elements is not None:
        command += ["--elements", str(elements)]
    return str(ready(processes.start("controller", command, state / "controller.json"))["http"])
