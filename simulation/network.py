"""Networks: hosts at one switch (star), or at one switch per rack under a spine (leaf-spine).

Every cable is two links, one per direction, each taking whole messages in the order of their coming. A message's first
bit is on the next link as soon as that is free; its last bit leaves no earlier than it came (cut-through), or it is
stored first. In a leaf-spine network, the spine stands for all its switches with traffic spread evenly: a rack's link
to it has its hosts' bandwidth together, divided by the oversubscription.

Source: "How to Train your DNN", section 5, as its tables show it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostlib.schedule import SPINE, SWITCH, leaf, racks_of
from simulation.errors import NetworkError

PS_PER_NS = 1000
LEAVES = 4  # of a leaf-spine network that does not say how many


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
        slot_bytes: what each switch can sum at a time; 0 for any.
        turn_bytes: messages between hosts go in parts of so many, which streams to one host take in turns, as TCP's do; so
            do a server's to several, while a worker's leave one after the other. 0: messages are not cut.
        servers_on_spine: with racks, servers with hosts of their own hang on the spine, as in emulated networks.

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
    slot_bytes: int = 0
    turn_bytes: int = 0
    servers_on_spine: bool = False

    def __post_init__(self) -> None:
        for name, least in (("latency_ns", 0), ("overhead_ns", 0), ("racks", 1), ("slot_bytes", 0), ("turn_bytes", 0)):
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


def tree(network: Network, workers: list[str], servers: list[str]) -> Tree:
    """Build the tree: workers rack by rack in their order, servers dealt out to the racks or on the spine.

    Raises:
        NetworkError: there are more racks than workers.
    """
    if network.racks > len(workers):
        raise NetworkError(f"racks must be in 1..{len(workers)}, the number of workers' hosts, not {network.racks}")
    nodes: list[tuple[int, int, int, int]] = []
    rates: list[float] = []
    names: list[tuple[str, str]] = []

    def cable(name: str, share: float) -> tuple[int, int]:
        rates.extend([network.ps_per_byte / share] * 2)
        names.extend([(name, "sent"), (name, "received")])
        return len(rates) - 2, len(rates) - 1

    top = SWITCH if network.racks == 1 else SPINE
    switches = {top: 0}
    nodes.append((-1, -1, -1, 1))
    uppers = [top] * (len(workers) + len(servers))
    if network.racks > 1:
        uppers = [leaf(rack) for rack, ranks in enumerate(racks_of(len(workers), network.racks)) for _ in ranks]
        in_racks = [leaf(number % network.racks) for number in range(len(servers))]
        uppers += [SPINE] * len(servers) if network.servers_on_spine else in_racks
        for name in map(leaf, range(network.racks)):
            switches[name] = len(nodes)
            nodes.append((0, *cable(name, uppers.count(name) / network.oversubscription), 1))
    hosts = []
    for name, upper in zip([*workers, *servers], uppers, strict=True):
        hosts.append(len(nodes))
        nodes.append((switches[upper], *cable(name, 1), 0))
    if network.racks > 1:
        switches[SWITCH] = switches[SPINE]  # a mechanism that knows of one switch has the one all can reach
    half = round(network.latency_ns * PS_PER_NS / 2)
    return Tree(
        np.array(nodes, np.int32),
        np.array(rates, np.float64),
        np.full(len(rates), half, np.int64),
        hosts,
        switches,
        names,
    )
