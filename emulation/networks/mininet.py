"""Mininet nodes that run P4 switches, and topologies made of them. Needs root, and Debian's package mininet.

The switches can also be used with Mininet's own classes:

    net = Mininet(SingleSwitchTopo(4), switch=EmbeddedSwitch, controller=None)

A link's options (rate, delay, loss, queue, mark, ...; docs/topology.md) are those of `emulation switch --port`.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mininet.net import Mininet
from mininet.node import Host as MininetHost
from mininet.node import Switch as MininetSwitch

from emulation.networks import addressing, links
from emulation.networks.addressing import Network, Started
from emulation.networks.cleanup import CleanupRecord, cleanup_record
from emulation.networks.running_network import Host, PreparedNetwork, own_seed
from emulation.networks.switch_processes import (
    Port,
    SwitchKind,
    SwitchProcesses,
    end_of,
    require_able,
    start_switch,
    started,
)
from emulation.switch.ports.port_spec import FAULT_OPTIONS, SHAPE_OPTIONS
from hostlib.system import network_links
from hostlib.system.network_namespace import inside
from hostlib.system.process import Starting
from hostlib.topology.topology import Topology, TopologyError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

CONTROL_NETWORKS = IPv4Network("198.18.0.0/15")  # The range for measurements within a device's own network: RFC 2544.
CONTROL_BITS = 22


class P4Switch(MininetSwitch):
    """A Mininet switch that is a process of ours.

    Args:
        processes: what it is started with and recorded in; of its own unless given.
        seed: of what its links lose.
        opts: more options of `emulation switch` (--program and --p4info, if no controller brings a program).
        params: of Mininet's Switch.

    Attributes:
        started: where its P4Runtime server is, when Mininet has started it.
    """

    kind: SwitchKind

    def __init__(
        self, name: str, processes: SwitchProcesses | None = None, seed: int = 0, opts: str = "", **params: Any
    ) -> None:
        super().__init__(name, opts=opts, **params)
        self.processes = processes
        self.seed = seed
        self.started: Started | None = None
        self._own = ExitStack()
        self._starting: Starting | None = None

    @classmethod
    def setup(cls) -> None:
        """Check Mininet's requirements. Raises TopologyError: something is missing."""
        require_able(cls.kind)

    def defaultDpid(self, dpid: str | None = None) -> str:
        """An OpenFlow id, which Mininet requires of every switch; it would derive it from the name's digits."""
        return (dpid or "0").replace(":", "").zfill(self.dpidLen)

    def start(self, controllers: Sequence[Any]) -> None:
        """Start the switch. Mininet's controllers speak OpenFlow and are ignored: a P4Runtime client programs this
        switch.
        """
        require_able(self.kind)
        if self.processes is None:
            self.processes = SwitchProcesses(
                self._own.enter_context(cleanup_record()), self.netns if self.inNamespace else None
            )
            self._own.callback(self.processes.stop)
        for number, intf in self.intfs.items():
            if number and intf.link is not None:
                _as_on_a_wire(intf.link.intf1 if intf.link.intf2 is intf else intf.link.intf2)
        self._starting = self._start(self.processes)

    def _start(self, processes: SwitchProcesses) -> Starting:
        return start_switch(processes, self.name, self.kind, self.cables(), self.seed, shlex.split(self.opts))

    @classmethod
    def batchStartup(cls, switches: Sequence[P4Switch]) -> Sequence[P4Switch]:
        """Wait for all switches; Mininet calls this when all have been started."""
        for switch in switches:
            assert switch._starting is not None
            switch.started = started(switch._starting)
        return switches

    def stop(self, deleteIntfs: bool = True) -> None:
        self._own.close()
        super().stop(deleteIntfs)

    @property
    def netns(self) -> str:
        return f"/proc/{self.pid}/ns/net"

    def cables(self) -> list[Port]:
        """Its ports, according to Mininet's links."""
        known = (*SHAPE_OPTIONS, *FAULT_OPTIONS, "direct")
        return [
            Port(number, intf.name, {name: str(value) for name, value in intf.params.items() if name in known})
            for number, intf in sorted(self.intfs.items())
            if intf.name != "lo"
        ]


class EmbeddedSwitch(P4Switch):
    """The embedded P4 switch."""

    kind = SwitchKind.EMBEDDED


class Bmv2Switch(P4Switch):
    """BMv2's simple_switch_grpc. It neither delays nor loses frames."""

    kind = SwitchKind.BMV2


class TofinoModelSwitch(P4Switch):
    """The model of Tofino 1, which `emulation tofino-model` drives. It does not delay frames."""

    kind = SwitchKind.TOFINO_MODEL


def _as_on_a_wire(end: Any) -> None:
    """Configure the other end of a switch's cable, wherever it is."""

    def change() -> None:
        with network_links.tables() as kernel:
            network_links.as_on_a_wire(kernel, end.name)

    inside(f"/proc/{end.node.pid}/ns/net", change)


CLASSES = {each.kind: each for each in (EmbeddedSwitch, Bmv2Switch, TofinoModelSwitch)}


class _Host(MininetHost):
    """A host without IPv6 and its background traffic."""

    def __init__(self, name: str, **params: Any) -> None:
        super().__init__(name, **params)
        self.netns = f"/proc/{self.pid}/ns/net"
        inside(self.netns, lambda: Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1"))


# ---- a topology -------------------------------------------------------------------------------------------------


@contextmanager
def nodes(topology: Topology, record: CleanupRecord) -> Iterator[PreparedNetwork]:
    """Make a topology's hosts Mininet hosts; its switches become nodes when they start.

    Raises:
        TopologyError: it cannot be made; it needs root.
    """
    if os.geteuid() != 0:
        raise TopologyError("Mininet needs root; the realisation loopback does not")
    net = Mininet(controller=None, build=False)
    try:
        token = record.path.stem.rpartition("-")[2]
        hosts = {name: _add_host(net, topology, record, name) for name in topology.hosts}
        control = _control_network(topology, record, token, hosts)

        def start(processes: SwitchProcesses, kind: SwitchKind, seed: int) -> dict[str, Started]:
            for name in topology.switches:
                switch = net.addSwitch(name, CLASSES[kind], processes=processes, seed=own_seed(topology, name, seed))
                record.process(switch.pid, f"{name} (Mininet)")
            _add_links(net, topology, record, token)
            net.start()
            return {switch.name: switch.started for switch in net.switches}

        described = tuple(
            Host(name, addressing.DATA.host(topology, name), f"{name}-eth0", host.netns) for name, host in hosts.items()
        )
        yield PreparedNetwork(SwitchProcesses(record), described, control.gateway, start, lambda do: do())
    finally:
        _end(net)


def _end(net: Mininet) -> None:
    """As Mininet.stop, without a command per interface: they disappear with their namespaces, or with the record."""
    for node in (*net.switches, *net.hosts):
        if node.shell is not None and node.shell.poll() is None:
            os.killpg(node.shell.pid, signal.SIGKILL)
        node.terminate()


def _add_host(net: Mininet, topology: Topology, record: CleanupRecord, name: str) -> Any:
    address = f"{addressing.DATA.host(topology, name)}/{addressing.DATA.bits}"
    host = net.addHost(name, _Host, ip=address, mac=addressing.mac(topology, name))
    record.process(host.pid, f"{name} (Mininet)")
    return host


def _add_links(net: Mininet, topology: Topology, record: CleanupRecord, token: str) -> None:
    """Add all cables; ends in this namespace get names that are unique to the run."""
    for number, cable in enumerate(topology.cables):
        upper, lower = f"n{token}u{number}", f"n{token}l{number}"
        ports: dict[str, Any] = {"port2": addressing.port(topology, cable), "params2": end_of(cable)}
        if cable.lower in topology.switches:
            ports |= {"port1": addressing.uplink(topology, cable.lower), "intfName1": lower}
            ports["params1"] = end_of(cable, lossy=False)
            record.interface(lower)
        record.interface(upper)
        net.addLink(cable.lower, cable.upper, intfName2=upper, **ports)
        for name in (upper, lower)[: 1 + (cable.lower in topology.switches)]:
            Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6").write_text("1")
            Path("/sys/class/net", name, "mtu").write_text(str(topology.mtu))
    net.build()
    for name in topology.hosts:
        host, above = net[name], topology.above(name)
        assert above is not None
        inside(host.netns, partial(_plug, topology, name))
        links.limit(host.netns, [f"{name}-eth0"], above.rate_bits_s, above.queue, topology.mtu)


def _plug(topology: Topology, name: str) -> None:
    with network_links.tables() as kernel:
        links.plug(kernel, f"{name}-eth0", topology, name)


def _control_network(topology: Topology, record: CleanupRecord, token: str, hosts: dict[str, Any]) -> Network:
    """Add a bridge for control traffic, connected to this namespace and all hosts."""
    bridge = f"n{token}control"
    with network_links.tables() as kernel:
        network = _free_network(kernel, int(token, 16))
        record.interface(bridge)
        index = network_links.bridge(kernel, bridge)
        network_links.set_up(kernel, bridge, network.gateway, network.bits)
        for number, (name, host) in enumerate(hosts.items()):
            end = f"n{token}c{number}"
            record.interface(end)
            network_links.veth(kernel, end, "control", host.pid, master=index)
            inside(host.netns, partial(_join, network.host(topology, name), network.bits))
    return network


def _join(address: str, bits: int) -> None:
    with network_links.tables() as kernel:
        network_links.set_up(kernel, "control", address, bits)


def _free_network(kernel: IPRoute, first: int) -> Network:
    """A network in which this machine has no address."""
    taken = [IPv4Address(address.get_attr("IFA_ADDRESS")) for address in kernel.get_addr(family=socket.AF_INET)]
    offered = list(CONTROL_NETWORKS.subnets(new_prefix=CONTROL_BITS))
    for number in range(len(offered)):
        network = offered[(first + number) % len(offered)]
        if not any(address in network for address in taken):
            return Network(str(network.network_address), CONTROL_BITS)
    raise TopologyError(f"no network of {CONTROL_NETWORKS} is free for control traffic")
