"""A running network: its hosts, switches, controller, and counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from emulation.networks import addressing
from emulation.networks.addressing import Network, Started
from emulation.networks.cleanup import CleanupRecord
from emulation.networks.switch_processes import (
    Port,
    SwitchKind,
    SwitchProcesses,
    start_controller,
    start_switch,
    started,
)
from hostlib.system.http_client import HttpError, controller_status
from hostlib.system.process import Process
from hostlib.topology.topology import Topology, TopologyError
from hostlib.transport.rendezvous import open_store

PATIENCE_S, POLL_S = 20.0, 0.2


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
class PreparedNetwork:
    """A network whose switches have not been started.

    Attributes:
        processes: starts switches and controller, where they have to run.
        control_address: of the controller, as hosts reach it.
        start: starts the switches, of a kind, with a seed.
        call: calls a function in the namespace of switches and controller.
        network: of the hosts' addresses on the links.
    """

    processes: SwitchProcesses
    hosts: tuple[Host, ...]
    control_address: str
    start: Callable[[SwitchProcesses, SwitchKind, int], dict[str, Started]]
    call: Callable[[Callable[[], Any]], Any]
    network: Network = addressing.DATA


@dataclass(frozen=True, slots=True)
class RunningNetwork:
    """A running network.

    Attributes:
        controller: its URL, as hosts reach it.
        hosts: workers, then servers.
        processes: switches and `controller`.
    """

    controller: str
    hosts: tuple[Host, ...]
    topology: Topology
    processes: Mapping[str, Process]
    record: CleanupRecord
    prepared: PreparedNetwork

    def store(self) -> Any:
        """Open a torch.distributed.TCPStore that all hosts reach at its `host` and `port`."""
        return self.prepared.call(lambda: open_store(self.prepared.control_address))

    def carried(self) -> dict[str, tuple[int, int]]:
        """Cable -> frame bytes that its lower end has (sent, received) so far, as counted by the switch above.

        Raises:
            TopologyError: the controller does not answer, or a switch is gone.
        """
        counted = self._counted()
        found: dict[str, tuple[int, int]] = {}
        for cable in self.topology.cables:
            port = counted[cable.upper]["ports"].get(str(addressing.port(self.topology, cable)), {})
            found[cable.lower] = port.get("bytes_in", 0), port.get("bytes_out", 0)
        return found

    def _counted(self) -> dict[str, dict[str, Any]]:
        """Each switch's counters; retried, because a switch may answer late on a busy machine."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            switches = self.status()["switches"]
            gone = [switch["name"] for switch in switches if not switch["up"]]
            if not gone:
                return {switch["name"]: switch for switch in switches}
            if time.monotonic() > give_up:
                raise TopologyError(f"the switch {', '.join(gone)} is gone, and its counters with it")
            time.sleep(POLL_S)

    def status(self) -> dict[str, Any]:
        """The controller's status: switches with their counters, and jobs.

        Raises:
            TopologyError: it does not answer.
        """

        try:
            return dict(self.prepared.call(lambda: controller_status(self.controller)))
        except HttpError as error:
            raise TopologyError(f"the controller does not answer: {error}") from error


@contextmanager
def at_work(topology: Topology, prepared: PreparedNetwork, kind: SwitchKind, seed: int) -> Iterator[RunningNetwork]:
    """Start a prepared network's switches and controller, for the duration of the block.

    Raises:
        TopologyError: one of them did not start.
    """
    try:
        described = addressing.for_controller(
            topology, prepared.start(prepared.processes, kind, seed), prepared.network
        )
        url = start_controller(prepared.processes, prepared.control_address, described, topology.elements)
        running = prepared.processes.record.processes()
        own = {name: running[name] for name in (*topology.switches, "controller")}
        yield RunningNetwork(url, prepared.hosts, topology, own, prepared.processes.record, prepared)
    finally:
        prepared.processes.stop()


def start_all(
    topology: Topology,
    ports: Callable[[str], Sequence[Port]],
    options: Callable[[str], Sequence[str]] = lambda switch: (),
) -> Callable[[SwitchProcesses, SwitchKind, int], dict[str, Started]]:
    """Return a function that starts a topology's switches, parents first.

    Args:
        ports: of a switch.
        options: further options of an embedded switch.
    """

    def start(processes: SwitchProcesses, kind: SwitchKind, seed: int) -> dict[str, Started]:
        there: dict[str, Started] = {}
        for names in topology.tree.levels():  # switches of one level start at the same time
            starting = [
                start_switch(processes, name, kind, ports(name), own_seed(topology, name, seed), options(name))
                for name in names
            ]
            there |= {name: started(switch) for name, switch in zip(names, starting, strict=True)}
        return there

    return start


def own_seed(topology: Topology, switch: str, seed: int) -> int:
    """A different seed for each switch."""
    return seed * len(topology.switches) + topology.switches.index(switch)
