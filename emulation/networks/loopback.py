"""A topology on this machine's loopback, without root: hosts are addresses, cables are UDP between the switches'
sockets.

Only what the switches themselves carry crosses a cable. TCP streams between hosts bypass them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from emulation.networks import addressing
from emulation.networks.addressing import Network
from emulation.networks.cleanup import CleanupRecord
from emulation.networks.running_network import Host, PreparedNetwork, start_all
from emulation.networks.switch_processes import Port, SwitchKind, SwitchProcesses, end_of
from hostlib.protocol import constants
from hostlib.system.interfaces import unused_udp_ports
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
    wires = _wires(topology)
    start = start_all(topology, lambda s: _ports(topology, s, wires), lambda s: _options(topology, s))
    yield PreparedNetwork(SwitchProcesses(record), hosts, HERE, start, lambda do: do(), HOSTS)


def _options(topology: Topology, switch: str) -> tuple[str, str]:
    return "--udp-destination", f"{addressing.fabric_address(topology, switch)}:{constants.NETFOLD_UDP_PORT}"


def _wires(topology: Topology) -> dict[str, tuple[str, str]]:
    """Lower switch of each cable between switches -> ADDRESS:PORT of its upper and of its lower end.

    Chosen before a switch starts: neither end believes anybody but the other.

    Raises:
        TopologyError: too few UDP ports are unused.
    """
    lower = [cable.lower for cable in topology.cables if cable.lower not in topology.hosts]
    try:
        ports = iter(unused_udp_ports(HERE, 2 * len(lower)))
    except OSError as error:
        raise TopologyError(f"no UDP ports for the wires between switches: {error}") from error
    return {switch: (f"{HERE}:{next(ports)}", f"{HERE}:{next(ports)}") for switch in lower}


def _ports(topology: Topology, switch: str, wires: Mapping[str, tuple[str, str]]) -> list[Port]:
    # A wire's effects on a frame happen where it enters: each end applies them to one direction.
    ports = []
    for cable in topology.below(switch):
        if cable.lower in topology.hosts:
            where = f"udp:{HERE}:0"
        else:
            upper, lower = wires[cable.lower]
            where = f"wire:{upper},{lower}"
        ports.append(Port(addressing.port(topology, cable), where, end_of(cable)))
    above = topology.above(switch)
    if above is not None:
        upper, lower = wires[switch]
        ports.append(Port(addressing.uplink(topology, switch), f"wire:{lower},{upper}", end_of(above)))
    return ports
