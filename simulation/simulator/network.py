"""Networks: hosts on one switch (star), on one switch per rack below a spine (leaf-spine), or on any tree of switches.

Every cable is two links, one per direction; a link carries whole messages, first come, first served. A message's first
bit enters the next link as soon as that is free, and its last bit leaves no earlier than it arrived (cut-through); or
switches store and forward.

In a leaf-spine network, the spine represents all spine switches with evenly spread traffic: a rack's link to it has its
hosts' total bandwidth, divided by the oversubscription.

Source: "How to Train your DNN", section 5, as its tables imply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostlib.schedules.schedule import SWITCH
from hostlib.topology.builtin.leaf_spine import leaf_of
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Cable, Topology
from hostlib.topology.topology_kinds import declare
from simulation.errors import NetworkError

PS_PER_NS = 1000


@dataclass(frozen=True, slots=True)
class HostLink:
    """A worker's cable, where each has its own.

    Attributes:
        delay_ns: one way; a message between two hosts has both hosts' delays.
    """

    rate_bits_s: float
    delay_ns: int


@dataclass(frozen=True, slots=True)
class Network:
    """A network between hosts.

    Attributes:
        bandwidth_bits_s: of each host's cable, in each direction.
        latency_ns: one way between hosts of one rack; each cable has half of it, also between racks.
        overhead_ns: time that each message occupies a host's cable in addition to its bytes.
        racks: 1 for a star.
        oversubscription: total bandwidth of a rack's hosts divided by the rack's to the spine.
        store_and_forward: switches receive the whole message before they forward it.
        store_and_aggregate: switches have the whole sum before they send it.
        slots: of a pool of sums: frames to the fabric that a rank has under way without their results, at most. Streams
            of chunks share twice as many, and so do owners of shards. 0 for any number.
        slot_bytes: values in such a frame.
        turnaround_ns: from the last bit of a result at a host to the first of the frame that uses its slot again.
        turn_bytes: messages between hosts are sent in parts of this size, which streams to one host send in turn, as
            TCP's do. So do a server's streams to several hosts, while a worker's messages leave one after the other. 0:
            whole messages.
        window_bytes: of a stream of such parts: that are under way without an acknowledgement, at most. 0 for any number.
        timeout_ns: after which such a stream sends the last frame of a message again, if that is lost.
        host_links: of worker 0, 1, ... of a star, in place of bandwidth and latency; jobs apart have the same ones each.
        topology: replaces star and racks: any tree, with its cables' rates and delays.
        declaration: a table [topology], which is declared with as many hosts as are played; replaces star and racks, too.
        efficiency: share of values in a cable's traffic.
        frame_bytes: with a topology: switches forward a frame once they have all of it; 0 for at once.
        worker_bits_s, server_bits_s: values that a host's cores let through in each direction.
        sums_bits_s: values of a job's sums that a switch lets through.

    Raises:
        NetworkError: it is impossible.
    """

    bandwidth_bits_s: float
    latency_ns: int = 0
    overhead_ns: int = 0
    racks: int = 1
    oversubscription: float = 1.0
    store_and_forward: bool = False
    store_and_aggregate: bool = False
    slots: int = 0
    slot_bytes: int = 1024
    turnaround_ns: int = 0
    turn_bytes: int = 0
    window_bytes: int = 0
    timeout_ns: int = 0
    host_links: tuple[HostLink, ...] = ()
    topology: Topology | None = None
    declaration: Mapping[str, Any] | None = None
    efficiency: float = 1.0
    frame_bytes: int = 0
    worker_bits_s: float = float("inf")
    server_bits_s: float = float("inf")
    sums_bits_s: float = float("inf")

    def __post_init__(self) -> None:
        whole = ("latency_ns", "overhead_ns", "slots", "turnaround_ns", "turn_bytes", "window_bytes", "timeout_ns")
        for name, least in (*((each, 0) for each in whole), ("racks", 1), ("slot_bytes", 1)):
            if getattr(self, name) < least:
                raise NetworkError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("bandwidth_bits_s", "oversubscription"):
            if not 0 < getattr(self, name) < float("inf"):
                raise NetworkError(f"{name} must be above 0 and finite, not {getattr(self, name)}")

    @property
    def ps_per_byte(self) -> float:
        return 8e12 / self.bandwidth_bits_s


@dataclass(frozen=True, slots=True)
class Tree:
    """A network as the kernel's tables.

    Attributes:
        nodes: by index: (parent, link up, link down, is a switch, equal cables to the parent); int32 (n, 5). Cable i
            has the links up + 2 i and down + 2 i.
        ps_per_byte, latency_ps, loss: by link.
        hosts: index of host h.
        switches: index by name.
        link_names: by link: (name of the cable, "sent" or "received" as its lower end sees it). A cable has its lower
            end's name; the further ones of several are leaf0.1, leaf0.2, ...
    """

    nodes: NDArray[np.int32]
    ps_per_byte: NDArray[np.float64]
    latency_ps: NDArray[np.int64]
    loss: NDArray[np.float64]
    hosts: list[int]
    switches: dict[str, int]
    link_names: list[tuple[str, str]]


def tree(network: Network, topology: Topology, workers: int, servers: int) -> Tree:
    """Make the tables of a network with given numbers of hosts.

    Args:
        topology: of topology_of.
    """
    switches = {name: index for index, name in enumerate(topology.switches)}
    nodes: list[tuple[int, int, int, int, int]] = [(-1, -1, -1, 1, 0)]
    ps_per_byte: list[float] = []
    latency_ps: list[int] = []
    loss: list[float] = []
    names: list[tuple[str, str]] = []
    hosts = topology.hosts
    for name in (*topology.switches[1:], *hosts):
        cable, is_switch = topology.above(name), name in switches
        assert cable is not None
        rate_bits_s = network.bandwidth_bits_s if cable.rate_bits_s is None else cable.rate_bits_s
        nodes.append((switches[cable.upper], len(names), len(names) + 1, int(is_switch), cable.parallel))
        limit_bits_s = float("inf")
        if not is_switch:
            limit_bits_s = network.server_bits_s if name.startswith("server") else network.worker_bits_s
            limit_bits_s = min(limit_bits_s, network.sums_bits_s)
        ps_per_byte += [8e12 / min(rate_bits_s * network.efficiency, limit_bits_s)] * (2 * cable.parallel)
        loss += [cable.loss] * (2 * cable.parallel)
        for number in range(cable.parallel):
            names += [(f"{name}.{number}" if number else name, way) for way in ("sent", "received")]
        delay_ps = round(cable.delay_ns * PS_PER_NS)
        stored_ps = round(network.frame_bytes * 8e12 / rate_bits_s)
        latency_ps += [delay_ps + stored_ps, delay_ps + (stored_ps if is_switch else 0)] * cable.parallel
    first = len(topology.switches)
    played = [f"worker{n}" for n in range(workers)] + [f"server{n}" for n in range(servers)]
    places = {name: first + index for index, name in enumerate(hosts)}
    # A mechanism with one switch uses the one that all hosts can reach.
    switches.setdefault(SWITCH, 0)
    return Tree(
        np.array(nodes, np.int32),
        np.array(ps_per_byte, np.float64),
        np.array(latency_ps, np.int64),
        np.array(loss, np.float64),
        [places[name] for name in played],
        switches,
        names,
    )


def round_trips(network: Network, of: Tree, workers: list[int], servers: list[int], sums: bool) -> NDArray[np.int64]:
    """How long after a host has begun to send a frame of the slot protocol its slot may be used again, on idle links.

    Args:
        workers, servers: of a job: their places among the tree's nodes.
        sums: switches do.

    Returns:
        Picoseconds by node of the tree; 0 where no host of the job is. int64.
    """
    trips = np.zeros(len(of.nodes), np.int64)
    # Hosts that hang on like cables at one switch have like ways: two of them stand for all.
    alike: dict[tuple[int, ...], list[int]] = {}
    for host in workers:
        parent, up, down = map(int, of.nodes[host][:3])
        key = (parent, int(of.latency_ps[up]), int(of.latency_ps[down]), round(1e6 * of.ps_per_byte[down]))
        alike.setdefault(key, []).append(host)
    some = [host for hosts in alike.values() for host in hosts[:2]]
    top = _lowest_common(of, some)

    def way(source: int, target: int) -> int:
        """Latencies from one node to another."""
        up, down = _to_root(of, source), _to_root(of, target)
        while up and down and up[-1] == down[-1]:
            up.pop()
            down.pop()
        sent, received = ([int(of.nodes[n][column]) for n in nodes] for column, nodes in ((1, up), (2, down)))
        return int(of.latency_ps[sent + received].sum())

    def taken(host: int) -> int:
        """By a host, from a frame's first bit on its link to the first of what follows from it."""
        frame_ps = network.slot_bytes * float(of.ps_per_byte[of.nodes[host][2]])
        return round(frame_ps) + network.turnaround_ns * PS_PER_NS

    def there_and_back(host: int, others: list[int]) -> int:
        ways = [way(host, other) + taken(other) + way(other, host) for other in others if other != host]
        return max(ways, default=0) + taken(host)

    for hosts in alike.values():
        first = hosts[0]
        if servers:
            trips[hosts] = there_and_back(first, servers)
        elif sums:
            trips[hosts] = way(first, top) + way(top, first) + taken(first)
        else:
            trips[hosts] = there_and_back(first, some)
    for server in servers:
        trips[server] = there_and_back(server, some)
    return trips


def _to_root(of: Tree, node: int) -> list[int]:
    """The nodes on the way from one to the root, which is not among them."""
    found = []
    while of.nodes[node][0] >= 0:
        found.append(node)
        node = int(of.nodes[node][0])
    return found


def _lowest_common(of: Tree, hosts: list[int]) -> int:
    """The switch nearest to hosts through which all their ways to each other go."""
    ways = [[*map(lambda n: int(of.nodes[n][0]), _to_root(of, host))] for host in hosts]
    return next(switch for switch in ways[0] if all(switch in way for way in ways))


def topology_of(network: Network, workers: int, servers: int) -> Topology:
    """Make a network's topology: workers rack by rack in order, servers assigned to the racks in turn.

    Raises:
        NetworkError: there are more racks than workers, or the network's own topology has too few hosts.
        TopologyError: see declared_topology.
    """
    if network.topology is not None:
        declared = network.topology
        if declared.workers < workers or declared.servers < servers:
            raise NetworkError(
                f"{workers} workers and {servers} servers are more than the topology has hosts for: "
                f"{declared.workers} workers and {declared.servers} servers"
            )
        return declared
    if network.declaration is not None:
        return declared_topology(network, workers, servers)
    if network.racks > workers:
        raise NetworkError(f"racks must be in 1..{workers}, the number of workers' hosts, not {network.racks}")
    flat = star_of(network, workers, servers)
    return flat if network.racks == 1 else _with_racks(flat, network)


def star_of(network: Network, workers: int, servers: int) -> Topology:
    """A network's hosts on one switch.

    Raises:
        NetworkError: workers' cables are given, and there are more or fewer workers.
    """
    flat = star(workers, servers, network.bandwidth_bits_s, network.latency_ns / 2)
    links = network.host_links
    if not links:
        return flat
    if workers % len(links):
        raise NetworkError(f"links of {len(links)} hosts are known, and not of {workers}")
    own = (links[number % len(links)] for number in range(workers))
    cables = [
        replace(cable, rate_bits_s=link.rate_bits_s, delay_ns=link.delay_ns)
        for cable, link in zip(flat.cables, own, strict=False)
    ]
    return replace(flat, cables=(*cables, *flat.cables[workers:]))


def declared_topology(network: Network, workers: int, servers: int) -> Topology:
    """Make the topology that a network's declaration describes.

    Raises:
        TopologyError: it is impossible with so many hosts.
    """
    return declare(network.declaration or {}, workers, servers, network.bandwidth_bits_s)


def _with_racks(flat: Topology, network: Network) -> Topology:
    """Split a star's hosts into racks; a rack's cable to the spine has its hosts' total bandwidth over the
    oversubscription.
    """
    leaves = [f"leaf{rack}" for rack in range(network.racks)]
    uppers = [leaves[leaf_of(number, flat.workers, network.racks)] for number in range(flat.workers)]
    for number in range(flat.servers):
        uppers.append(leaves[number % network.racks])
    up = [
        Cable(
            name,
            "spine",
            network.bandwidth_bits_s * (uppers.count(name) / network.oversubscription),
            network.latency_ns / 2,
        )
        for name in leaves
    ]
    down = [replace(cable, upper=upper) for cable, upper in zip(flat.cables, uppers, strict=True)]
    return Topology(flat.workers, flat.servers, ("spine", *leaves), (*up, *down))
