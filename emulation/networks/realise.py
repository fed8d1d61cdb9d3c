"""Realise a declared network in one of three ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum

from emulation.networks.cleanup import CleanupRecord, cleanup_record
from emulation.networks.limits import require_realisable
from emulation.networks.running_network import Host, PreparedNetwork, RunningNetwork, at_work
from emulation.networks.switch_processes import SwitchKind, require_able
from hostlib.topology.topology import Topology, TopologyError

__all__ = ["Host", "NetworkKind", "RunningNetwork", "SwitchKind", "realise"]


class NetworkKind(Enum):
    """Where hosts and switches are.

    LOOPBACK: directly on this machine, without root; only the fabric's own traffic crosses its links.
    NETNS: each host in a network namespace.
    MININET: hosts and switches as nodes of Mininet.
    """

    LOOPBACK = "loopback"
    NETNS = "netns"
    MININET = "mininet"

    def require_streams(self, what: str) -> None:
        """Refuse mechanisms whose hosts use TCP if that would not cross the network.

        Raises:
            TopologyError: TCP would bypass the network.
        """
        if self is NetworkKind.LOOPBACK:
            raise TopologyError(
                f"on loopback {what} would bypass the switches and links' rates: choose netns or mininet, which "
                "need root, or a mechanism that only the fabric carries"
            )


@contextmanager
def realise(topology: Topology, how: NetworkKind, kind: SwitchKind, seed: int = 0) -> Iterator[RunningNetwork]:
    """Run the network for the duration of the block; nothing of it is left afterwards.

    Its processes also end with the thread that enters the block, so that thread has to stay.

    Args:
        seed: of random losses.

    Raises:
        EmulationError, HostlibError: it cannot be made here, or in this way.
    """
    require_able(kind)
    require_realisable(topology)
    with (
        cleanup_record() as record,
        _prepared(topology, how, kind, record) as prepared,
        at_work(topology, prepared, kind, seed) as made,
    ):
        yield made


def _prepared(
    topology: Topology, how: NetworkKind, kind: SwitchKind, record: CleanupRecord
) -> AbstractContextManager[PreparedNetwork]:
    """Prepare the network; requirements are only checked for the chosen kinds."""
    if kind is SwitchKind.BMV2 and any(cable.loss or cable.delay_ns for cable in topology.cables):
        raise TopologyError("bmv2 neither delays nor loses frames: leave out delay and loss, or use embedded")
    if kind is SwitchKind.TOFINO_MODEL and any(cable.delay_ns for cable in topology.cables):
        raise TopologyError("tofino-model does not delay frames: leave out delay, or use embedded")
    unmarking = kind is not SwitchKind.EMBEDDED or how is NetworkKind.LOOPBACK
    if unmarking and any(cable.mark for cable in topology.cables):
        where = kind.value if kind is not SwitchKind.EMBEDDED else how.value
        raise TopologyError(f"{where} has no queue that marks frames: leave out mark, or use embedded and netns")
    if how is NetworkKind.NETNS:
        from emulation.networks.netns import namespaces

        return namespaces(topology, record)
    if how is NetworkKind.MININET:
        try:
            from emulation.networks.mininet import nodes
        except ImportError as absent:
            raise TopologyError(
                f"the realisation mininet needs Debian's package mininet ({absent}): apt-get install mininet, and a "
                "virtual environment with --system-site-packages"
            ) from absent
        return nodes(topology, record)
    from emulation.networks.loopback import loopback

    return loopback(topology, record, kind)
