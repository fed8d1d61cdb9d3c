"""A topology in network namespaces: one for each host, and one for all switches and their controller. Needs root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyroute2 import IPRoute

from emulation.topology import cabling, wiring
from emulation.topology.declaration import Link, Topology, TopologyError
from emulation.topology.fabric import Host, Site, start_all
from emulation.topology.ledger import Ledger
from emulation.topology.switch import Ground, Port, end_of
from hostlib.namespace import inside, make_namespace

CONTROL = cabling.Network("10.1.0.0")
Returned = TypeVar("Returned")


@contextmanager
def namespaces(topology: Topology, ledger: Ledger) -> Iterator[Site]:
    """The hosts, and the switches' ends of all cables.

    Raises:
        TopologyError, NamespaceError: they cannot be made.
    """
    if os.geteuid() != 0:
        raise TopologyError("network namespaces need root; the realisation loopback does not")
    token = ledger.path.stem.rpartition("-")[2]
    space = f"netfold-emulation-{os.getpid()}-{token}"
    spaces = {name: f"{space}{name}" for name in topology.hosts}
    for name in (space, *spaces.values()):
        ledger.namespace(name)
        make_namespace(name)
    _work(space, lambda kernel: _cable(kernel, topology, spaces))
    for name, host in spaces.items():
        _work(host, lambda kernel, name=name: _configure(kernel, topology, name))
        above = topology.above(name)
        assert above is not None
        wiring.limit(host, ["data"], above.rate_bits_s, above.queue)
    hosts = tuple(
        Host(name, cabling.DATA.host(topology, name), "data", f"/run/netns/{spaces[name]}") for name in topology.hosts
    )
    yield Site(
        Ground(ledger, space),
        hosts,
        CONTROL.gateway,
        start_all(topology, lambda switch, started: _ports(topology, switch)),
        lambda do: inside(space, do),
    )


def _work(space: str, do: Callable[[IPRoute], Returned]) -> Returned:
    """With the kernel's tables of a namespace."""

    def run() -> Returned:
        with wiring.tables() as kernel:
            return do(kernel)

    return inside(space, run)


def _cable(kernel: IPRoute, topology: Topology, spaces: dict[str, str]) -> None:
    """In the switches' namespace: a bridge of the control network, and all cables, named after their lower ends."""
    bridge = wiring.bridge(kernel, "control")
    wiring.set_up(kernel, "control", CONTROL.gateway, CONTROL.bits)
    for number, (name, host) in enumerate(spaces.items()):
        wiring.veth(kernel, f"c{number}", "control", host, master=bridge)
        wiring.veth(kernel, name, "data", host)
    for link in topology.links:
        if link.lower in topology.switches:
            wiring.veth(kernel, link.lower, _uplink(link))
            kernel.link("set", index=wiring.index_of(kernel, _uplink(link)), state="up")


def _configure(kernel: IPRoute, topology: Topology, name: str) -> None:
    """In a host's namespace."""
    wiring.set_up(kernel, "control", CONTROL.host(topology, name), CONTROL.bits)
    wiring.plug(kernel, "data", topology, name)


def _uplink(link: Link) -> str:
    return f"{link.lower}-up"


def _ports(topology: Topology, switch: str) -> list[Port]:
    ports = [Port(cabling.port(topology, link), link.lower, end_of(link)) for link in topology.below(switch)]
    above = topology.above(switch)
    # Of a cable between two switches the upper one does what it does to frames.
    return ports if above is None else [*ports, Port(cabling.UPLINK, _uplink(above), end_of(above, lossy=False))]
