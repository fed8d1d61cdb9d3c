"""Embedded switches as processes, which outlive a killed controller."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path

from controller.errors import ControllerError, SwitchError
from controller.jobs.switch_share import HOSTS_PER_SWITCH
from controller.state_file import Embedded
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.system.interfaces import unused_udp_ports
from hostlib.system.process import Process, StartError, start_and_wait_ready

START_TIMEOUT_S = 60.0
LARGEST_TREE = 16
UPLINK, FIRST_DOWNLINK, CPU_PORT = 100, 101, 500
IDLE_S = 60
HERE = "127.0.0.1"
ANYWHERE = f"{HERE}:0"


@dataclass(slots=True)
class Switches:
    """The switches that the controller uses.

    Attributes:
        processes: those that it may stop and restart; empty if it was given its switches.
        embedded: how each of those was started.
        changed: called when a process has been started, so that the state file is up to date whatever happens next.
    """

    state_dir: Path
    topology: Topology
    processes: dict[str, Process] = field(default_factory=dict)
    embedded: dict[str, Embedded] = field(default_factory=dict)
    changed: Callable[[], None] = lambda: None

    def stop(self) -> None:
        for process in self.processes.values():
            process.stop()

    def restart(self, name: str, ended: threading.Event) -> None:
        """Kill a switch and restart it on the same ports.

        If another process has taken its ports, all switches are restarted on other ports, which changes the topology.

        Args:
            ended: an event that ends the wait when another thread sets it.

        Raises:
            SwitchError: it did not start.
        """
        self._kill(name)
        try:
            self._start(self.topology.switch(name), self._wires(name), ended)
        except SwitchError:
            if ended.is_set():
                raise
            for other in list(self.processes):
                self._kill(other)
            self._start_all(list(self.topology.switches), ended)

    def _kill(self, name: str) -> None:
        # Not SIGTERM: a stopped process would not handle it.
        process = self.processes[name]
        if process.alive:
            os.kill(process.pid, signal.SIGKILL)
            process.gone_within(START_TIMEOUT_S)

    def _wires(self, name: str) -> dict[int, str]:
        """Port -> ADDRESS:PORT,ADDRESS:PORT: this switch's end of the wire there, and the other end."""
        switch, own = self.topology.switch(name), self.embedded[name].wires
        others = {
            child.downlink: self.embedded[child.name].wires[child.uplink] for child in self.topology.children(name)
        }
        if switch.parent is not None:
            others[switch.uplink] = self.embedded[switch.parent].wires[switch.downlink]
        return {port: f"{end},{others[port]}" for port, end in own.items()}

    def _start_all(self, wanted: list[Switch], ended: threading.Event) -> None:
        """Start all switches on free ports, parents first.

        Both ends of a wire are chosen beforehand: neither end believes anybody else.

        Raises:
            SwitchError: a switch did not start, or there are too few unused ports.
        """
        leaves = [switch for switch in wanted if switch.parent is not None]
        try:
            chosen = iter(unused_udp_ports(HERE, 2 * len(leaves)))
        except OSError as error:
            raise SwitchError(f"no UDP ports for the wires between switches: {error}") from error
        wires: dict[str, dict[int, str]] = {switch.name: {} for switch in wanted}
        for leaf in leaves:
            upper, lower = (f"{HERE}:{next(chosen)}" for _ in range(2))
            wires[leaf.parent or ""][leaf.downlink] = f"{upper},{lower}"
            wires[leaf.name][leaf.uplink] = f"{lower},{upper}"
        started: dict[str, Switch] = {}
        for switch in wanted:
            anywhere = replace(switch, p4rt=ANYWHERE, ports=dict.fromkeys(switch.ports, ANYWHERE))
            started[switch.name] = self._start(anywhere, wires[switch.name], ended)
        self.topology = Topology(tuple(started.values()))
        self.changed()

    def _start(self, switch: Switch, wires: dict[int, str], ended: threading.Event) -> Switch:
        """Start a switch and record it; returns it with the ports that it got."""
        ready, log = self.state_dir / f"{switch.name}.json", self.state_dir / f"{switch.name}.log"
        ready.unlink(missing_ok=True)
        options = self.embedded[switch.name].options
        command = [
            sys.executable,
            "-m",
            "emulation",
            "switch",
            "--p4rt",
            switch.p4rt,
            "--ready-file",
            str(ready),
            *options,
        ]
        command += [word for n, where in switch.ports.items() for word in ("--port", f"{n}=udp:{where}")]
        command += [word for n, where in wires.items() for word in ("--port", f"{n}=wire:{where}")]
        try:
            child, described = start_and_wait_ready(
                command,
                ready,
                log,
                what="the embedded switch",
                within_s=START_TIMEOUT_S,
                cancelled=ended,
                append=True,
                dies_by=None,
            )
        except StartError as error:
            raise SwitchError("the controller is ending" if ended.is_set() else str(error)) from error
        # Reaped when it ends, so that it does not look alive as a zombie.
        threading.Thread(target=child.wait, daemon=True).start()
        process = Process.of(child.pid)
        if process is None:
            raise SwitchError("the embedded switch died right after it started")
        self.processes[switch.name] = process
        self.embedded[switch.name] = Embedded(options, {int(n): end for n, end in described["wires"].items()})
        self.changed()
        ports = {int(n): endpoint for n, endpoint in described["ports"].items()}
        return replace(switch, p4rt=described["p4rt"], device_id=described["device_id"], ports=ports)


def start_switches(
    state_dir: Path, leaves: int, ports: int, fabric_address: str, seed: int, faults: dict[str, float]
) -> Switches:
    """Start a switch, or a root with leaves below it.

    Args:
        ports: of each switch with ranks on it.
        fabric_address: of the root; its leaves have consecutive ones.
        faults: loss, duplicate, reorder: probabilities.

    Raises:
        ControllerError: impossible numbers, or a switch did not start; none is left running.
    """
    if not 0 <= leaves <= LARGEST_TREE:
        raise ControllerError(f"--racks {leaves} is not in 1..{LARGEST_TREE}")
    if not 1 <= ports <= HOSTS_PER_SWITCH:
        raise ControllerError(f"--ports {ports} is not in 1..{HOSTS_PER_SWITCH}")
    anywhere = dict.fromkeys(range(1, ports + 1), ANYWHERE)
    address = IPv4Address(fabric_address)
    wanted = [Switch("root" if leaves else "switch", ANYWHERE, 1, fabric_address, anywhere)]
    wanted += [
        Switch(f"leaf{n}", ANYWHERE, 1, str(address - n - 1), anywhere, "root", UPLINK, FIRST_DOWNLINK + n)
        for n in range(leaves)
    ]
    if leaves:
        # The cables of a tree are checked; a switch by itself has none.
        wanted = [replace(switch, cpu_port=CPU_PORT) for switch in wanted]
    options = {
        switch.name: {
            **({} if switch.cpu_port is None else {"--cpu-port": switch.cpu_port}),
            "--udp-destination": f"{switch.address}:{constants.NETFOLD_UDP_PORT}",
            "--exit-when-idle": f"{IDLE_S:g}s",
            "--seed": (seed * LARGEST_TREE + number) % 2**63,
            **{f"--{fault}": probability for fault, probability in faults.items()},
        }
        for number, switch in enumerate(wanted)
    }
    embedded = {
        name: Embedded([str(word) for pair in flags.items() for word in pair]) for name, flags in options.items()
    }
    state_dir.mkdir(parents=True, exist_ok=True)
    for switch in wanted:
        (state_dir / f"{switch.name}.log").unlink(missing_ok=True)
    switches = Switches(state_dir, Topology((wanted[0],)), embedded=embedded)
    try:
        switches._start_all(wanted, threading.Event())
    except BaseException:
        switches.stop()
        raise
    return switches
