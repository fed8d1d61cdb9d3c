"""Limits of networks that can be realised: addresses and the P4 program."""

from __future__ import annotations

from controller.jobs.switch_share import HOSTS_PER_SWITCH
from hostlib.topology.topology import Topology, TopologyError

LARGEST_HOSTS = 512
LARGEST_SWITCHES = 128


def require_hosts(workers: int, servers: int) -> None:
    """Refuse more hosts than any realisation can have, before the network is built.

    Raises:
        TopologyError: there are too many.
    """
    if workers + servers > LARGEST_HOSTS:
        raise TopologyError(f"{workers} workers and {servers} servers are too many: at most {LARGEST_HOSTS} together")


def require_realisable(topology: Topology) -> None:
    """Refuse a topology that no realisation can have.

    Raises:
        TopologyError: it is too large, its servers are not on the root, or a switch has several uplinks.
    """
    require_hosts(topology.workers, topology.servers)
    several = next((cable for cable in topology.cables if cable.parallel > 1), None)
    if several is not None:
        raise TopologyError(
            f"{several.lower} has {several.parallel} uplinks, which can be simulated, but not emulated: the switches' "
            "program forwards along a tree (leave out spines, or parallel)"
        )
    if len(topology.switches) > LARGEST_SWITCHES:
        raise TopologyError(f"{len(topology.switches)} switches are not in 1..{LARGEST_SWITCHES}")
    for switch in topology.switches:
        members = [cable.lower for cable in topology.below(switch) if not cable.lower.startswith("server")]
        if len(members) > HOSTS_PER_SWITCH:
            raise TopologyError(
                f"{switch} has {len(members)} workers and switches below it; "
                f"a switch sums at most {HOSTS_PER_SWITCH}: spread them over more leaves"
            )
    for number in range(topology.servers):
        switch = topology.switch_of(f"server{number}")
        if switch != topology.root:
            raise TopologyError(f"server{number} is on {switch}; servers are on the root, {topology.root}")
