"""Make a declared network real, in one of three ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from emulation.topology.declaration import Topology
from emulation.topology.fabric import Fabric, Host, at_work
from emulation.topology.ledger import ledger
from emulation.topology.netns import namespaces
from emulation.topology.switch import SwitchKind, require_able

__all__ = ["Fabric", "Host", "Realisation", "SwitchKind", "realise"]


class Realisation(Enum):
    """Where hosts and switches are.

    LOOPBACK: on this machine as it is, without root; only what the fabric itself carries crosses its links.
    NETNS: each host in a network namespace.
    MININET: hosts and switches as nodes of Mininet.
    """

    LOOPBACK = "loopback"
    NETNS = "netns"
    MININET = "mininet"


@contextmanager
def realise(topology: Topology, how: Realisation, kind: SwitchKind, seed: int = 0) -> Iterator[Fabric]:
    """The network, at work for as long as the block runs; nothing of it is left afterwards.

    Args:
        seed: of what its links lose.

    Raises:
        EmulationError, HostlibError: it cannot be made here, or this way.
    """
    require_able(kind, topology)
    shaping = kind is not SwitchKind.EMBEDDED
    with ledger() as record, namespaces(topology, record, shaping) as site, at_work(topology, site, kind, seed) as made:
        yield made
