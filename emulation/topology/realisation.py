"""Make a declared network real, in one of three ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from emulation.topology.declaration import Topology, TopologyError
from emulation.topology.fabric import Fabric, Host, Site, at_work
from emulation.topology.ledger import Ledger, ledger
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

    def require_streams(self, what: str) -> None:
        """Refuse what makes hosts talk to one another by TCP where that would not cross the network.

        Raises:
            TopologyError: so.
        """
        if self is Realisation.LOOPBACK:
            raise TopologyError(
                f"on loopback {what} would go past the switches, at no link's rate: choose netns or mininet, which "
                "need root, or a mechanism that only the fabric carries"
            )


@contextmanager
def realise(topology: Topology, how: Realisation, kind: SwitchKind, seed: int = 0) -> Iterator[Fabric]:
    """The network, at work for as long as the block runs; nothing of it is left afterwards.

    Its processes end with the thread that enters the block, too: that thread has to stay.

    Args:
        seed: of what its links lose.

    Raises:
        EmulationError, HostlibError: it cannot be made here, or this way.
    """
    require_able(kind)
    with ledger() as record, _site(topology, how, kind, record) as site, at_work(topology, site, kind, seed) as made:
        yield made


def _site(topology: Topology, how: Realisation, kind: SwitchKind, record: Ledger) -> AbstractContextManager[Site]:
    """Needs are looked for only when they are needed."""
    if kind is SwitchKind.TOFINO_MODEL:
        raise TopologyError(
            "netfold's controller has no program for tofino-model yet: use embedded or bmv2, or "
            "emulation.topology.mininet.TofinoModelSwitch with a controller of your own"
        )
    if kind is not SwitchKind.EMBEDDED and any(link.loss or link.delay_ns for link in topology.links):
        raise TopologyError(f"{kind.value} neither delays nor loses frames: leave out delay and loss, or use embedded")
    if how is Realisation.NETNS:
        from emulation.topology.netns import namespaces

        return namespaces(topology, record)
    if how is Realisation.MININET:
        try:
            from emulation.topology.mininet import nodes
        except ImportError as absent:
            raise TopologyError(
                f"the realisation mininet needs Debian's package mininet ({absent}): apt-get install mininet, and a "
                "virtual environment with --system-site-packages"
            ) from absent
        return nodes(topology, record)
    from emulation.topology.loopback import loopback

    return loopback(topology, record, kind)
