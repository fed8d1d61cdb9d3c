"""What each switch of a tree is told of a job: its ranks, its leaves as ranks, and what is above."""

from __future__ import annotations

from collections.abc import Iterator

from controller.job import Job, Rank
from controller.share import Above, Member, Share
from controller.topology import Switch, Topology
from hostlib import layout


def host_mac(port: int) -> int:
    """The MAC that hosts on UDP ports of the embedded switch have."""
    return 0x0200_0001_0000 | port


def shares(job: Job, topology: Topology) -> dict[str, list[Share]]:
    """Per switch that the job uses, parents first, one share for each pool of slots.

    The sum is taken where all ranks meet: at the lowest switch that has all of them below, or, when the job has a
    server, at the root, where the server is.
    """
    paths = [topology.path(rank.switch) for rank in job.ranks.values()]
    top = topology.root.name if job.server else next(s for s in paths[0] if all(s in path for path in paths))
    used = {name for path in paths for name in path[: path.index(top) + 1]}
    return {
        switch.name: [_share(job, topology, switch, top, used, number) for number in range(len(job.pools))]
        for switch in topology.switches
        if switch.name in used
    }


def _share(job: Job, topology: Topology, switch: Switch, top: str, used: set[str], number: int) -> Share:
    pool = job.pools[number]
    ranks = sorted((r for r in job.ranks.values() if r.switch == switch.name), key=lambda r: r.rank)
    leaves = [leaf for leaf in topology.children(switch.name) if leaf.name in used]
    return Share(
        job_id=job.job_id,
        epoch=job.epoch,
        first_slot=pool.first_slot,
        slots=pool.slots,
        group=pool.group,
        members=(
            *(_worker(rank, number) for rank in ranks),
            *(_leaf(leaf, topology, job.leaves[leaf.name][number]) for leaf in leaves),
        ),
        above=_above(job, topology, switch, top, number),
        policy="sum" if job.policy == "server" else job.policy,
        offset=pool.offset,
        hosts=tuple(_hosts(job, topology, switch)),
    )


def _hosts(job: Job, topology: Topology, switch: Switch) -> Iterator[tuple[int, int]]:
    """Of cables only: on loopback hosts reach each other without a switch, and have MACs that others have, too. To hosts
    whose MACs the topology says there is a way already."""
    for rank in job.everybody:
        at = topology.switch(rank.switch)
        if rank.mac is not None and rank.switch_port in at.hosts and rank.switch_port not in at.macs:
            near = rank.switch == switch.name
            yield rank.mac, rank.switch_port if near else topology.towards(switch.name, rank.switch)


def _worker(rank: Rank, number: int) -> Member:
    mac = host_mac(rank.switch_port) if rank.mac is None else rank.mac
    return Member(rank.rank, rank.switch_port, mac, rank.address, rank.udp_ports[number], rank.replicas[number])


def _leaf(leaf: Switch, topology: Topology, replica: int) -> Member:
    rank = topology.rank_of(leaf.name)
    return Member(rank, leaf.downlink, leaf.mac, leaf.address, layout.NETFOLD_UDP_PORT, replica)


def _above(job: Job, topology: Topology, switch: Switch, top: str, number: int) -> Above | None:
    if switch.name != top:
        parent = topology.switch(switch.parent or "")
        rank = topology.rank_of(switch.name)
        return Above("parent", switch.uplink, parent.mac, parent.address, layout.NETFOLD_UDP_PORT, rank)
    if job.server is None:
        return None
    server = job.server
    mac = host_mac(server.switch_port) if server.mac is None else server.mac
    return Above("server", server.switch_port, mac, server.address, server.udp_ports[number])
