"""What a topology's nodes are called on the wire: ports, addresses, and what the controller is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from emulation.topology.declaration import Link, Topology
from hostlib import layout

FIRST_MAC = 0x02_4E_46_00_00_00
ROOT_ADDRESS = IPv4Address("10.255.255.254")
UPLINK = 500  # every switch's port to its parent


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses of all hosts, of a network with so many bits in front."""

    first: str
    bits: int = 16

    def host(self, topology: Topology, name: str) -> str:
        return str(IPv4Address(self.first) + 1 + topology.hosts.index(name))

    @property
    def gateway(self) -> str:
        """The last: of whoever is there beside the hosts."""
        return str(IPv4Address(self.first) + (1 << 32 - self.bits) - 2)


DATA = Network("10.0.0.0")


@dataclass(frozen=True, slots=True)
class Started:
    """A switch that runs.

    Attributes:
        ports: port -> ADDRESS:PORT where a host on it reaches the fabric; none for network interfaces, where that is
            the switch's own address.
        wires: port to another switch -> ADDRESS:PORT of this end.
    """

    p4rt: str
    device_id: int
    ports: Mapping[int, str] = field(default_factory=dict)
    wires: Mapping[int, str] = field(default_factory=dict)


def mac(topology: Topology, host: str) -> str:
    number = FIRST_MAC + 1 + topology.hosts.index(host)
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


def fabric_address(topology: Topology, switch: str) -> str:
    return str(ROOT_ADDRESS - topology.switches.index(switch))


def port(topology: Topology, link: Link) -> int:
    """Of the upper switch."""
    return 1 + topology.below(link.upper).index(link)


def for_controller(topology: Topology, started: Mapping[str, Started], network: Network = DATA) -> dict[str, Any]:
    """The file that `controller start --topology` takes (docs/topology.md).

    Args:
        network: of the hosts' addresses. On DATA they have interfaces, and MAC addresses, of their own.
    """
    return {"switches": [_switch(topology, name, started[name], network) for name in topology.switches]}


def _switch(topology: Topology, name: str, started: Started, network: Network) -> dict[str, Any]:
    address = fabric_address(topology, name)
    hosts = {port(topology, link): link.lower for link in topology.below(name) if link.lower in topology.hosts}
    described: dict[str, Any] = {
        "name": name,
        "p4rt": started.p4rt,
        "device_id": started.device_id,
        "address": address,
        "ports": {str(n): started.ports.get(n, f"{address}:{layout.NETFOLD_UDP_PORT}") for n in hosts},
        "hosts": {str(n): network.host(topology, host) for n, host in hosts.items()},
    }
    if network == DATA:
        described["macs"] = {str(n): mac(topology, host) for n, host in hosts.items()}
    above = topology.above(name)
    if above is not None:
        described |= {"parent": above.upper, "uplink": UPLINK, "downlink": port(topology, above)}
    return described
