"""Ports and addresses of a topology's nodes, and their description for the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from controller.target import V1MODEL
from hostlib.protocol import addresses, constants
from hostlib.topology.topology import Cable, Topology


@dataclass(frozen=True, slots=True)
class Network:
    """IPv4 addresses of all hosts, in a network with a given prefix."""

    first: str
    bits: int = 16

    def host(self, topology: Topology, name: str) -> str:
        return str(IPv4Address(self.first) + 1 + topology.hosts.index(name))

    @property
    def gateway(self) -> str:
        """The network's last address, which no host has."""
        return str(IPv4Address(self.first) + (1 << 32 - self.bits) - 2)


DATA = Network("10.0.0.0")


@dataclass(frozen=True, slots=True)
class Started:
    """A running switch.

    Attributes:
        ports: port -> ADDRESS:PORT where a host on it reaches the fabric; empty for network interfaces, where the
            switch's own address serves.
        target: its kind, a name in TARGETS of controller/target.py.
    """

    p4rt: str
    device_id: int
    ports: Mapping[int, str] = field(default_factory=dict)
    target: str = V1MODEL.name


def mac(topology: Topology, host: str) -> str:
    return addresses.mac_text(addresses.link_mac(1 + topology.hosts.index(host)))


def fabric_address(topology: Topology, switch: str) -> str:
    return addresses.fabric_address(topology.switches.index(switch))


def port(topology: Topology, cable: Cable) -> int:
    """The upper switch's port of a cable."""
    return 1 + topology.below(cable.upper).index(cable)


def uplink(topology: Topology, switch: str) -> int:
    """A switch's port to its parent: behind those to what is below it, as a chip's ports are few."""
    return 1 + len(topology.below(switch))


def for_controller(topology: Topology, started: Mapping[str, Started], network: Network = DATA) -> dict[str, Any]:
    """The file for `controller start --topology` (docs/topology.md).

    Args:
        network: of the hosts' addresses. On DATA, hosts have interfaces and MAC addresses of their own.
    """
    return {"switches": [_switch(topology, name, started[name], network) for name in topology.switches]}


def _switch(topology: Topology, name: str, started: Started, network: Network) -> dict[str, Any]:
    address = fabric_address(topology, name)
    hosts = {port(topology, cable): cable.lower for cable in topology.below(name) if cable.lower in topology.hosts}
    described: dict[str, Any] = {
        "name": name,
        "p4rt": started.p4rt,
        "device_id": started.device_id,
        "address": address,
        "ports": {str(n): started.ports.get(n, f"{address}:{constants.NETFOLD_UDP_PORT}") for n in hosts},
        "hosts": {str(n): network.host(topology, host) for n, host in hosts.items()},
    }
    if started.target != V1MODEL.name:
        described["target"] = started.target
    if network == DATA:
        described["macs"] = {str(n): mac(topology, host) for n, host in hosts.items()}
    above = topology.above(name)
    if above is not None:
        described |= {"parent": above.upper, "uplink": uplink(topology, name), "downlink": port(topology, above)}
    return described
