"""The processes of a fabric: switches of each kind, and their controller, where they are told to run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from emulation.topology.cabling import Started
from emulation.topology.declaration import Link, Topology, TopologyError
from emulation.topology.ledger import Ledger
from hostlib.launch import die_with_parent

START_S = 90.0
STOP_S = 20.0
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
    """A port of a switch, and the cable in it.

    Attributes:
        where: as `emulation switch --port` takes it: eth:INTERFACE, udp:ADDRESS:PORT or wire:ADDRESS:PORT.
        lossy: this port's end does what the link does to frames in both directions (delay, loss).
    """

    number: int
    where: str
    link: Link
    lossy: bool = True

    def option(self) -> str:
        words = [f"{self.number}={self.where}", f"queue={self.link.queue}"]
        if self.link.rate_bits_s is not None:
            words.append(f"rate={self.link.rate_bits_s:.0f}bit")
        if self.lossy:
            words += [f"delay={self.link.delay_ns}ns", f"loss={self.link.loss!r}"]
        return ",".join(words)


@dataclass(frozen=True, slots=True)
class Ground:
    """Where the processes of a fabric run.

    Attributes:
        prefix: what comes before a command there.
    """

    ledger: Ledger
    prefix: tuple[str, ...] = ()
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process that ends with this one, however that ends, and is in the ledger; it logs to NAME.log."""
        with (self.ledger.folder / f"{name}.log").open("wb") as said:
            child = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.children.append(child)
        self.ledger.process(child.pid, name)
        return child

    def stop(self) -> None:
        """End what was started: the last, the controller, first, since it would look for its switches; then these."""
        for ending in (self.children[-1:], self.children[:-1]):
            for child in ending:
                child.terminate()
            for child in ending:
                try:
                    child.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    child.kill()
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


def require_able(kind: SwitchKind, topology: Topology) -> None:
    """Refuse what a kind of switch cannot do, or is not there to do.

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
    if kind is SwitchKind.TOFINO_MODEL:
        raise TopologyError("switches of kind tofino-model are nodes of Mininet: realise the topology with mininet")
    if any(link.loss or link.delay_ns for link in topology.links):
        raise TopologyError(
            f"switches of kind {kind.value} neither delay nor lose frames: leave out delay and loss, or use embedded"
        )


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
        return start_bmv2(ground, name, [(port.number, port.where) for port in ports])
    return start_embedded(ground, name, ports, seed, options)


def start_embedded(ground: Ground, name: str, ports: Iterable[Port], seed: int, options: Sequence[str]) -> Starting:
    ready = ground.ledger.folder / f"{name}.json"
    command = [sys.executable, "-m", "emulation", "switch", "--p4rt", "127.0.0.1:0", "--ready-file", str(ready)]
    command += ["--seed", str(seed), *options]
    command += [word for port in ports for word in ("--port", port.option())]
    return Starting(ground, name, ground.start(name, command), ready)


def start_bmv2(ground: Ground, name: str, interfaces: Iterable[tuple[int, str]]) -> Starting:
    """BMv2 on (port, interface)s."""
    socket = ground.ledger.folder / f"{name}.p4rt"
    command = [BMV2, "--no-p4", "--device-id", "1", "--log-level", "off"]
    # Any free port for its Thrift server: unless told, all of a network namespace want the same.
    command += ["--thrift-port", "0"]
    command += [word for number, interface in interfaces for word in ("-i", f"{number}@{interface}")]
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
