"""A topology on this machine's loopback, without root: hosts are addresses, cables are UDP between the switches'
sockets.

Only what the switches themselves carry crosses a cable. TCP streams between hosts bypass them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from emulation.networks import addressing
from emulation.networks.addressing import Network, Started
from emulation.networks.cleanup import CleanupRecord
from emulation.networks.running_network import Host, PreparedNetwork, start_all
from emulation.networks.switch_processes import Port, SwitchKind, SwitchProcesses, end_of
from hostlib.protocol import constants
from hostlib.topology.topology import Topology, TopologyError

HOSTS = Network("127.78.0.0")
HERE = "127.0.0.1"


@contextmanager
def loopback(topology: Topology, record: CleanupRecord, kind: SwitchKind) -> Iterator[PreparedNetwork]:
    """Prepare the hosts, which need no setup.

    Raises:
        TopologyError: a kind of switch that needs network interfaces.
    """
    if kind is not SwitchKind.EMBEDDED:
        raise TopologyError(
            f"switches of kind {kind.value} need network interfaces: on loopback there is embedded alone"
        )
    hosts = tuple(Host(name, HOSTS.host(topology, name), "lo", None) for name in topology.hosts)
    start = start_all(
        topology, lambda switch, started: _ports(topology, switch, started), lambda s: _options(topology, s)
    )
    yield PreparedNetwork(SwitchProcesses(record), hosts, HERE, start, lambda do: do(), HOSTS)


def _options(topology: Topology, switch: str) -> tuple[str, str]:
    return "--udp-destination", f"{addressing.fabric_address(topology, switch)}:{constants.NETFOLD_UDP_PORT}"


def _ports(topology: Topology, switch: str, started: Mapping[str, Started]) -> list[Port]:
    ports = []
    for cable in topology.below(switch):
        way = "udp" if cable.lower in topology.hosts else "wire"
        ports.append(Port(addressing.port(topology, cable), f"{way}:{HERE}:0", end_of(cable)))
    above = topology.above(switch)
    if above is not None:
        # A wire's effects on a frame happen where it enters: each end applies them to one direction.
        far = started[above.upper].wires[addressing.port(topology, above)]
        ports.append(Port(addressing.UPLINK, f"wire:{HERE}:0,{far}", end_of(above)))
    return ports
