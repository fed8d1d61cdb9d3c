"""A network at work: its hosts, its switches with their controller, and what these have counted."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.process import Process
from emulation.topology import cabling
from emulation.topology.cabling import Network, Started
from emulation.topology.declaration import Topology, TopologyError
from emulation.topology.ledger import Ledger
from emulation.topology.switch import (
    Ground,
    Port,
    SwitchKind,
    start_controller,
    start_switch,
)
from hostlib.meeting import open_store

ASK_S = 10.0
PATIENCE_S, POLL_S = 20.0, 0.2
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Host:
    """Where a worker or server runs.

    Attributes:
        address: on the data links.
        interface: of that address; control traffic has its own.
        netns: a path for setns(2); None for this process's own.
    """

    name: str
    address: str
    interface: str
    netns: str | None


@dataclass(frozen=True, slots=True)
class Site:
    """A network without its switches.

    Attributes:
        ground: where switches and controller run.
        control_address: of the controller, as hosts reach it.
        start: starts the switches, of a kind, with a seed.
        call: calls where the switches and the controller are.
        network: of the hosts' addresses on the links.
    """

    ground: Ground
    hosts: tuple[Host, ...]
    control_address: str
    start: Callable[[Ground, SwitchKind, int], dict[str, Started]]
    call: Callable[[Callable[[], Any]], Any]
    network: Network = cabling.DATA


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network at work.

    Attributes:
        controller: its URL, as hosts reach it.
        hosts: workers, then servers.
        processes: switches and `controller`.
    """

    controller: str
    hosts: tuple[Host, ...]
    topology: Topology
    processes: Mapping[str, Process]
    ledger: Ledger
    site: Site

    def store(self) -> Any:
        """A torch.distributed.TCPStore that all hosts reach; its `host` and `port` say where."""
        return self.site.call(lambda: open_store(self.site.control_address))

    def carried(self) -> dict[str, tuple[int, int]]:
        """Bytes of frames that the lower end of each cable has (sent, received) so far, as the switch above counts.

        Raises:
            TopologyError: the controller does not answer, or a switch is gone.
        """
        counted = self._counted()
        found: dict[str, tuple[int, int]] = {}
        for link in self.topology.links:
            port = counted[link.upper]["ports"].get(str(cabling.port(self.topology, link)), {})
            found[link.lower] = port.get("bytes_in", 0), port.get("bytes_out", 0)
        return found

    def _counted(self) -> dict[str, dict[str, Any]]:
        """What each switch has counted. On a busy machine one may be slow to answer, which is no loss."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            switches = self.status()["switches"]
            gone = [switch["name"] for switch in switches if not switch["up"]]
            if not gone:
                return {switch["name"]: switch for switch in switches}
            if time.monotonic() > give_up:
                raise TopologyError(f"the switch {', '.join(gone)} is gone: nobody knows what it has carried")
            time.sleep(POLL_S)

    def status(self) -> dict[str, Any]:
        """What the controller says: switches with their counters, and jobs.

        Raises:
            TopologyError: it does not answer.
        """

        def ask() -> dict[str, Any]:
            with urllib.request.urlopen(f"{self.controller}/status", timeout=ASK_S) as reply:
                return dict(json.load(reply))

        try:
            return dict(self.site.call(ask))
        except (OSError, ValueError) as wrong:
            raise TopologyError(f"the controller at {self.controller} does not answer: {wrong}") from wrong

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds, of user and system, that each switch and the controller have used; what died is left out."""
        return {name: _cpu_s(process) for name, process in self.processes.items() if process.alive}

    def record(self, pid: int, what: str) -> None:
        """Have a process of the experiment's ended with the network, whatever happens to this process."""
        self.ledger.process(pid, what)


def _cpu_s(process: Process) -> float:
    """Source: proc(5), /proc/[pid]/stat, fields 14 and 15."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@contextmanager
def at_work(topology: Topology, site: Site, kind: SwitchKind, seed: int) -> Iterator[Fabric]:
    """Start a site's switches and their controller, for as long as the block runs.

    Raises:
        TopologyError: one of them did not start.
    """
    try:
        started = site.start(site.ground, kind, seed)
        described = cabling.for_controller(topology, started, site.network)
        url = start_controller(site.ground, site.control_address, described)
        processes = site.ground.ledger.processes()
        own = {name: processes[name] for name in (*topology.switches, "controller")}
        yield Fabric(url, site.hosts, topology, own, site.ground.ledger, site)
    finally:
        site.ground.stop()


def start_all(
    topology: Topology,
    ports: Callable[[str, Mapping[str, Started]], Sequence[Port]],
    options: Callable[[str], Sequence[str]] = lambda switch: (),
) -> Callable[[Ground, SwitchKind, int], dict[str, Started]]:
    """What starts a topology's switches, parents first.

    Args:
        ports: of a switch, when those above it have started.
        options: of an embedded switch, more of them.
    """

    def start(ground: Ground, kind: SwitchKind, seed: int) -> dict[str, Started]:
        started: dict[str, Started] = {}
        for names in levels(topology):
            starting = [
                start_switch(ground, name, kind, ports(name, started), own_seed(topology, name, seed), options(name))
                for name in names
            ]
            started |= {each.name: each.finish() for each in starting}
        return started

    return start


def own_seed(topology: Topology, switch: str, seed: int) -> int:
    """Of each switch another."""
    return seed * len(topology.switches) + topology.switches.index(switch)


def levels(topology: Topology) -> list[list[str]]:
    """The switches that can start at once: the root, what is below it, and so on."""
    found = [[topology.root]]
    while below := [
        link.lower for name in found[-1] for link in topology.below(name) if link.lower in topology.switches
    ]:
        found.append(below)
    return found
