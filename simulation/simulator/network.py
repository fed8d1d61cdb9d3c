"""Networks: hosts at one switch (star), at one switch per rack under a spine (leaf-spine), or on any tree of switches.

Every cable is two links, one per direction, each taking whole messages in the order of their coming. A message's first
bit is on the next link as soon as that is free; its last bit leaves no earlier than it came (cut-through), or it is
stored first. In a leaf-spine network, the spine stands for all its switches with traffic spread evenly: a rack's link
to it has its hosts' bandwidth together, divided by the oversubscription.

Source: "How to Train your DNN", section 5, as its tables show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hostlib.schedules.schedule import SWITCH
from hostlib.topology.builtin.leaf_spine import leaf_of
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Cable, Topology
from simulation.errors import NetworkError

PS_PER_NS = 1000


@dataclass(frozen=True, slots=True)
class Network:
    """What hosts are connected by.

    Attributes:
        bandwidth_bits_s: of each host's cable, each way.
        latency_ns: one way between hosts of one rack; half of it is each cable's, also between racks.
        overhead_ns: for which a host's cable is taken by each message besides its bytes.
        racks: 1 for a star.
        oversubscription: hosts' bandwidth of a rack over the rack's to the spine.
        store_and_forward: switches have the whole message before they send it on.
        store_and_aggregate: switches have the whole sum before they send it on.
        slots: of a pool of sums: frames to the fabric that a rank has under way without their results, at most. Streams
            of chunks share twice as many. 0 for any number.
        slot_bytes: values in such a frame.
        turnaround_ns: from the last bit of a result at a host to the first of the frame that uses its slot again.
        turn_bytes: messages between hosts go in parts of so many, which streams to one host take in turns, as TCP's do; so
            do a server's to several, while a worker's leave one after the other. 0: messages are not cut.
        topology: instead of a star or racks: any tree, with the rates and delays of its cables.
        efficiency: values' share of what a cable of that carries.
        frame_bytes: with a topology: switches send a frame on when they have the whole of it; 0 for at once.

    Raises:
        NetworkError: it cannot be.
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
    topology: Topology | None = None
    efficiency: float = 1.0
    frame_bytes: int = 0

    def __post_init__(self) -> None:
        whole = ("latency_ns", "overhead_ns", "slots", "turnaround_ns", "turn_bytes")
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
        nodes: by index: (parent, link up, link down, is a switch); int32 (n, 4).
        ps_per_byte, latency_ps: by link.
        hosts: index of host h.
        switches: index by name.
        link_names: by link: (name of the cable, "sent" or "received" as its lower end sees it).
    """

    nodes: NDArray[np.int32]
    ps_per_byte: NDArray[np.float64]
    latency_ps: NDArray[np.int64]
    hosts: list[int]
    switches: dict[str, int]
    link_names: list[tuple[str, str]]


def tree(network: Network, topology: Topology, workers: int, servers: int) -> Tree:
    """The tables of a network with so many hosts.

    Args:
        topology: of topology_of.
    """
    switches = {name: index for index, name in enumerate(topology.switches)}
    nodes: list[tuple[int, int, int, int]] = [(-1, -1, -1, 1)]
    ps_per_byte: list[float] = []
    latency_ps: list[int] = []
    names: list[tuple[str, str]] = []
    hosts = topology.hosts
    for name in (*topology.switches[1:], *hosts):
        cable, is_switch = topology.above(name), name in switches
        assert cable is not None
        rate_bits_s = network.bandwidth_bits_s if cable.rate_bits_s is None else cable.rate_bits_s
        nodes.append((switches[cable.upper], len(names), len(names) + 1, int(is_switch)))
        ps_per_byte += [8e12 / (rate_bits_s * network.efficiency)] * 2
        names += [(name, "sent"), (name, "received")]
        delay_ps = round(cable.delay_ns * PS_PER_NS)
        stored_ps = round(network.frame_bytes * 8e12 / rate_bits_s)
        latency_ps += [delay_ps + stored_ps, delay_ps + (stored_ps if is_switch else 0)]
    first = len(topology.switches)
    played = [f"worker{n}" for n in range(workers)] + [f"server{n}" for n in range(servers)]
    places = {name: first + index for index, name in enumerate(hosts)}
    # A mechanism that knows of one switch has the one that all can reach.
    switches.setdefault(SWITCH, 0)
    return Tree(
        np.array(nodes, np.int32),
        np.array(ps_per_byte, np.float64),
        np.array(latency_ps, np.int64),
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
        parent, up, down, _ = map(int, of.nodes[host])
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
    """A network with so many hosts: workers rack by rack in their order, servers dealt out to the racks.

    Raises:
        NetworkError: there are more racks than workers, or the network's own topology has fewer hosts.
    """
    if network.topology is not None:
        declared = network.topology
        if declared.workers < workers or declared.servers < servers:
            raise NetworkError(
                f"{workers} workers and {servers} servers are more than the topology has hosts for: "
                f"{declared.workers} workers and {declared.servers} servers"
            )
        return declared
    if network.racks > workers:
        raise NetworkError(f"racks must be in 1..{workers}, the number of workers' hosts, not {network.racks}")
    flat = star(workers, servers, network.bandwidth_bits_s, network.latency_ns / 2)
    return flat if network.racks == 1 else _with_racks(flat, network)


def _with_racks(flat: Topology, network: Network) -> Topology:
    """A star's hosts in racks; a rack's cable to the spine has all its hosts' bandwidth, over the oversubscription."""
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
