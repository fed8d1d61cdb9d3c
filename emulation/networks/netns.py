"""A topology in network namespaces: one for each host, and one for all switches and their controller. Needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from emulation.networks import addressing, links
from emulation.networks.cleanup import CleanupRecord
from emulation.networks.running_network import Host, PreparedNetwork, start_all
from emulation.networks.switch_processes import Port, SwitchProcesses, end_of
from hostlib.system import network_links
from hostlib.system.network_links import with_tables
from hostlib.system.network_namespace import inside, make_namespace
from hostlib.topology.topology import Cable, Topology, TopologyError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

CONTROL = addressing.Network("10.1.0.0")


@contextmanager
def namespaces(topology: Topology, record: CleanupRecord) -> Iterator[PreparedNetwork]:
    """Make the hosts, and the switches' ends of all cables.

    Raises:
        TopologyError, NamespaceError: they cannot be made.
    """
    if os.geteuid() != 0:
        raise TopologyError("network namespaces need root; the realisation loopback does not")
    token = record.path.stem.rpartition("-")[2]
    space = f"netfold-emulation-{os.getpid()}-{token}"
    spaces = {name: f"{space}{name}" for name in topology.hosts}
    for name in (space, *spaces.values()):
        record.namespace(name)
        make_namespace(name)
    with_tables(space, lambda kernel: _cable(kernel, topology, spaces))
    for name, host in spaces.items():
        with_tables(host, partial(_configure, topology=topology, name=name))
        above = topology.above(name)
        assert above is not None
        links.limit(host, ["data"], above.rate_bits_s, above.queue, topology.mtu)
    hosts = tuple(
        Host(name, addressing.DATA.host(topology, name), "data", f"/run/netns/{spaces[name]}")
        for name in topology.hosts
    )
    yield PreparedNetwork(
        SwitchProcesses(record, space),
        hosts,
        CONTROL.gateway,
        start_all(topology, lambda switch: _ports(topology, switch)),
        lambda do: inside(space, do),
    )


def _cable(kernel: IPRoute, topology: Topology, spaces: dict[str, str]) -> None:
    """In the switches' namespace: make the control network's bridge, and all cables, named after their lower ends."""
    bridge = network_links.bridge(kernel, "control")
    network_links.set_up(kernel, "control", CONTROL.gateway, CONTROL.bits)
    for number, (name, host) in enumerate(spaces.items()):
        network_links.veth(kernel, f"c{number}", "control", host, master=bridge)
        network_links.veth(kernel, name, "data", host, topology.mtu)
    for cable in topology.cables:
        if cable.lower in topology.switches:
            network_links.veth(kernel, cable.lower, _uplink(cable), mtu=topology.mtu)
            kernel.link("set", index=network_links.index_of(kernel, _uplink(cable)), state="up")


def _configure(kernel: IPRoute, topology: Topology, name: str) -> None:
    """Configure the interfaces in a host's namespace."""
    network_links.set_up(kernel, "control", CONTROL.host(topology, name), CONTROL.bits)
    links.plug(kernel, "data", topology, name)


def _uplink(cable: Cable) -> str:
    return f"{cable.lower}-up"


def _ports(topology: Topology, switch: str) -> list[Port]:
    ports = [Port(addressing.port(topology, cable), cable.lower, end_of(cable)) for cable in topology.below(switch)]
    above = topology.above(switch)
    # Of a cable between two switches, the upper one applies delay and loss.
    if above is not None:
        ports.append(Port(addressing.uplink(topology, switch), _uplink(above), end_of(above, lossy=False)))
    return ports
