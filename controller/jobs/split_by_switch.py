"""Split a job by switches: each one's ranks, its leaves (as ranks), and what is above it."""

from __future__ import annotations

from collections.abc import Iterator

from controller.jobs.job import POOL_PER_RANK, Job, Rank
from controller.jobs.port_check import port_numbers
from controller.jobs.switch_share import Echo, Member, SwitchShare, Upstream
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.protocol.addresses import udp_host_mac


def shares(job: Job, topology: Topology) -> dict[str, list[SwitchShare]]:
    """Switch -> one share for each slot pool, parents first, for the switches that the job uses."""
    top = _top(job, topology)
    paths = [topology.path(rank.switch) for rank in job.ranks.values()]
    used = {name for path in paths for name in path[: path.index(top) + 1]}
    return {
        switch.name: [_share(job, topology, switch, top, used, number) for number in range(len(job.pools))]
        for switch in topology.switches
        if switch.name in used
    }


def levels(job: Job, topology: Topology, rank: Rank) -> int:
    """How many switches a contribution of a rank passes, with the one where the sum is taken."""
    return topology.path(rank.switch).index(_top(job, topology)) + 1


def _top(job: Job, topology: Topology) -> str:
    """The switch where the sum is taken, which is where all ranks meet: the lowest that has all of them below it or, if
    the job has a server, the root, where the server is.
    """
    paths = [topology.path(rank.switch) for rank in job.ranks.values()]
    return topology.root.name if job.server else next(s for s in paths[0] if all(s in path for path in paths))


def _share(job: Job, topology: Topology, switch: Switch, top: str, used: set[str], number: int) -> SwitchShare:
    pool = job.pools[number]
    source = job.ranks[number] if job.policy in POOL_PER_RANK else None
    here = (rank for rank in job.ranks.values() if rank.switch == switch.name and rank is not source)
    ranks = sorted(here, key=lambda rank: rank.rank)
    # For what goes from or to one rank the root is that rank's switch: a switch above may be below in this tree.
    near = [leaf for leaf in topology.children(switch.name) if leaf.name in used]
    below = [leaf for leaf in near if source is None or leaf.name not in topology.path(source.switch)]
    if source is not None and switch.name != top and switch.name in topology.path(source.switch):
        upwards = _parent(switch, topology, job.leaves[switch.name][number])
    else:
        upwards = None
    return SwitchShare(
        job_id=job.job_id,
        epoch=job.epoch,
        first_slot=pool.first_slot,
        slots=pool.slots,
        group=pool.group,
        members=(
            *(_worker(rank, number) for rank in ranks),
            *(_leaf(leaf, topology, job.leaves[leaf.name][number]) for leaf in below),
            *([upwards] if upwards is not None else []),
        ),
        above=_above(job, topology, switch, top, number)
        if source is None
        else _towards(source, topology, switch, number),
        policy={"server": "sum", "peers": "chunk", "owners": "sum"}.get(job.policy, job.policy),
        offset=pool.offset,
        hosts=tuple(_hosts(job, topology, switch)),
        echoes=tuple(_echoes(job, switch)),
    )


def _echoes(job: Job, switch: Switch) -> Iterator[Echo]:
    for member in job.everybody:
        if member.switch == switch.name:
            for udp_port, number in dict(zip(member.udp_ports, port_numbers(job, member), strict=True)).items():
                yield Echo(member.rank, member.switch_port, _mac(member), member.address, udp_port, number)


def _hosts(job: Job, topology: Topology, switch: Switch) -> Iterator[tuple[int, int]]:
    """MAC address and port of a job's hosts, for hosts behind cables only.

    Hosts on loopback reach each other without a switch, and their MACs are not unique. Hosts whose MACs are in the
    topology already have entries.
    """
    for rank in job.everybody:
        at = topology.switch(rank.switch)
        if rank.mac is not None and rank.switch_port in at.hosts and rank.switch_port not in at.macs:
            near = rank.switch == switch.name
            yield rank.mac, rank.switch_port if near else topology.towards(switch.name, rank.switch)


def _worker(rank: Rank, number: int) -> Member:
    return Member(rank.rank, rank.switch_port, _mac(rank), rank.address, rank.udp_ports[number], rank.replicas[number])


def _leaf(leaf: Switch, topology: Topology, replica: int) -> Member:
    rank = topology.rank_of(leaf.name)
    return Member(rank, leaf.downlink, leaf.mac, leaf.address, constants.NETFOLD_UDP_PORT, replica)


def _parent(leaf: Switch, topology: Topology, replica: int) -> Member:
    """The switch above as a member: both it and the leaf use the leaf's rank at its parent."""
    above = topology.switch(leaf.parent or "")
    rank = topology.rank_of(leaf.name)
    return Member(rank, leaf.uplink, above.mac, above.address, constants.NETFOLD_UDP_PORT, replica)


def _above(job: Job, topology: Topology, switch: Switch, top: str, number: int) -> Upstream | None:
    if switch.name != top:
        parent = topology.switch(switch.parent or "")
        rank = topology.rank_of(switch.name)
        return Upstream("parent", switch.uplink, parent.mac, parent.address, constants.NETFOLD_UDP_PORT, rank)
    return None if job.server is None else _host(job.server, number)


def _towards(source: Rank, topology: Topology, switch: Switch, number: int) -> Upstream:
    """What is above on the path to the source of a rank's chunks: that rank, or the next switch."""
    path = topology.path(source.switch)
    if switch.name == source.switch:
        return _host(source, number)
    if switch.name in path:
        below = topology.switch(path[path.index(switch.name) - 1])
        port, near, rank = below.downlink, below, topology.rank_of(below.name)
    else:
        port, near, rank = switch.uplink, topology.switch(switch.parent or ""), topology.rank_of(switch.name)
    return Upstream("parent", port, near.mac, near.address, constants.NETFOLD_UDP_PORT, rank)


def _host(host: Rank, number: int) -> Upstream:
    return Upstream("server", host.switch_port, _mac(host), host.address, host.udp_ports[number], host.rank)


def _mac(host: Rank) -> int:
    return udp_host_mac(host.switch_port) if host.mac is None else host.mac
