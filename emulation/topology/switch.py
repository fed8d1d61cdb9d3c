"""The processes of a fabric: switches of each kind, and their controller, where they are told to run."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from emulation.switch.port import parse_rate
from emulation.topology import wiring
from emulation.topology.cabling import Started
from emulation.topology.declaration import QUEUE_FRAMES, Link, TopologyError
from emulation.topology.ledger import Ledger

START_S = 90.0
STOP_S = 5.0
POLL_S = 0.02
BMV2 = "simple_switch_grpc"
TOFINO = ("tofino-model", "bf_switchd")


class SwitchKind(Enum):
    """What forwards and sums."""

    EMBEDDED = "embedded"
    BMV2 = "bmv2"
    TOFINO_MODEL = "tofino-model"


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a switch, and what its end of the cable does to frames.

    Attributes:
        where: as `emulation switch --port` takes it: INTERFACE, udp:ADDRESS:PORT or wire:ADDRESS:PORT.
        options: as `emulation switch --port` takes them, rate, delay, loss, queue among others.
    """

    number: int
    where: str
    options: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> str:
        return ",".join([f"{self.number}={self.where}", *(f"{name}={value}" for name, value in self.options.items())])


def end_of(link: Link, lossy: bool = True) -> dict[str, str]:
    """Options of a port with this cable.

    Args:
        lossy: this is the end that does to frames in both directions what the link does (delay, loss).
    """
    options = {"queue": str(link.queue)}
    if link.rate_bits_s is not None:
        options["rate"] = f"{max(link.rate_bits_s, 1):.0f}bit"
    if lossy and link.delay_ns:
        options["delay"] = f"{link.delay_ns}ns"
    if lossy and link.loss:
        options["loss"] = f"{link.loss:.12f}"
    return options


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the processes of a fabric run.

    Attributes:
        space: a network namespace, as hostlib.namespace.inside takes it; None for this process's own.
    """

    ledger: Ledger
    space: str | None = None
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process that ends with this one, however that ends, and is in the ledger; it logs to NAME.log."""
        # Not a preexec_fn: Python would call its hooks around the fork, and a Ctrl-C that comes in one of them is lost.
        enter = ["setpriv", "--pdeathsig", "KILL"]
        if self.space is not None:
            enter += ["nsenter", f"--net={Path('/run/netns', self.space)}"]
        with (self.ledger.folder / f"{name}.log").open("wb") as said:
            child = subprocess.Popen(
                [*enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self.children.append(child)
        self.ledger.process(child.pid, name)
        return child

    def stop(self) -> None:
        """End what was started. The last, the controller, goes first, and tidily: it would look for its switches."""
        for child in self.children[-1:]:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()
        self.children.clear()

    def await_file(self, child: subprocess.Popen[bytes], name: str, ready: Path) -> None:
        """Until the process has written it.

        Raises:
            TopologyError: it ended, or takes too long; with its own words.
        """
        give_up = time.monotonic() + START_S
        while not ready.exists():
            if child.poll() is not None:
                said = (self.ledger.folder / f"{name}.log").read_text(errors="replace")
                lines = [line for line in said.splitlines() if line.strip()]
                reason = lines[-1].removeprefix("error: ") if lines else f"exit code {child.returncode}"
                raise TopologyError(f"{name} did not start: {reason}")
            if time.monotonic() > give_up:
                raise TopologyError(f"{name} was not ready within {START_S:.0f} s")
            time.sleep(POLL_S)


def require_able(kind: SwitchKind) -> None:
    """Refuse a kind of switch that is not there.

    Raises:
        TopologyError: so.
    """
    if kind is SwitchKind.EMBEDDED:
        return
    wanted = (BMV2,) if kind is SwitchKind.BMV2 else TOFINO
    absent = [name for name in wanted if shutil.which(name) is None]
    if absent:
        where = "docs/p4c.md says where it is packaged" if kind is SwitchKind.BMV2 else "docs/tofino.md"
        raise TopologyError(f"switches of kind {kind.value} need {' and '.join(absent)} on PATH: {where}")


@dataclass(frozen=True, slots=True)
class Starting:
    """A switch that was started and may not be ready yet."""

    ground: Ground
    name: str
    child: subprocess.Popen[bytes]
    ready: Path

    def finish(self) -> Started:
        """Wait until it is.

        Raises:
            TopologyError: it did not start.
        """
        self.ground.await_file(self.child, self.name, self.ready)
        if self.ready.is_socket():
            return Started(f"unix:{self.ready}", 1)
        said: dict[str, Any] = json.loads(self.ready.read_text())
        ports, wires = ({int(n): str(end) for n, end in said[which].items()} for which in ("ports", "wires"))
        return Started(said["p4rt"], said["device_id"], ports, wires)


def start_switch(
    ground: Ground, name: str, kind: SwitchKind, ports: Iterable[Port], seed: int, options: Sequence[str] = ()
) -> Starting:
    """A switch of any kind but Tofino's; `options` are more of `emulation switch`."""
    if kind is SwitchKind.BMV2:
        return start_bmv2(ground, name, list(ports))
    return start_embedded(ground, name, ports, seed, options)


def start_embedded(ground: Ground, name: str, ports: Iterable[Port], seed: int, options: Sequence[str]) -> Starting:
    ready = ground.ledger.folder / f"{name}.json"
    command = [sys.executable, "-m", "emulation", "switch", "--p4rt", "127.0.0.1:0", "--ready-file", str(ready)]
    command += ["--seed", str(seed), *options]
    command += [word for port in ports for word in ("--port", port.described())]
    return Starting(ground, name, ground.start(name, command), ready)


def start_bmv2(ground: Ground, name: str, ports: Sequence[Port]) -> Starting:
    """BMv2, whose interfaces the kernel keeps to their rates.

    Raises:
        TopologyError: a port is no interface, or to do what BMv2 cannot.
    """
    command = [BMV2, "--no-p4", "--device-id", "1", "--log-level", "off"]
    # Any free port for its Thrift server: unless told, all of a network namespace want the same.
    command += ["--thrift-port", "0"]
    for port in ports:
        unable = [option for option in port.options if option not in ("rate", "queue")]
        if unable or ":" in port.where:
            raise TopologyError(
                f"{name}, port {port.described()}: BMv2 is on network interfaces and knows no {' or '.join(unable)}: "
                "leave that out, or use switches of kind embedded"
            )
        command += ["-i", f"{port.number}@{port.where}"]
        if "rate" in port.options:
            queue = int(port.options.get("queue", QUEUE_FRAMES))
            wiring.limit(ground.space, [port.where], parse_rate(port.options["rate"]), queue)
    socket = ground.ledger.folder / f"{name}.p4rt"
    command += ["--", "--grpc-server-addr", f"unix:{socket}"]
    return Starting(ground, name, ground.start(name, command), socket)


def start_controller(ground: Ground, address: str, described: dict[str, Any]) -> str:
    """The controller of switches that run (cabling.for_controller), ready; its URL.

    Raises:
        TopologyError: it did not start.
    """
    folder = ground.ledger.folder
    topology, state = folder / "topology.json", folder / "controller"
    topology.write_text(json.dumps(described))
    command = [sys.executable, "-m", "controller", "start", "--foreground", "--http", f"{address}:0"]
    command += ["--topology", str(topology), "--state-dir", str(state)]
    child = ground.start("controller", command)
    ground.await_file(child, "controller", state / "controller.json")
    return str(json.loads((state / "controller.json").read_text())["http"])
