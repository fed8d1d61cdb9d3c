"""leaf-spine: workers spread over leaves, whose uplinks meet in one spine; servers are on that."""

from __future__ import annotations

from hostlib.topology.topology import QUEUE_FRAMES, Cable, Topology, TopologyError, host_names
from hostlib.topology.topology_table import TopologyTable

NAME = "leaf-spine"
SUMMARY = "a switch for each rack of workers, under one more"
LEAVES = 4  # of a network that does not say how many


class Table(TopologyTable):
    """
    Attributes:
        leaves: 4 unless said, or one for each worker where there are fewer.
        oversubscription: what a full leaf's workers may send together, as a multiple of its uplink's rate.
    """

    leaves: int | None = None
    oversubscription: float = 1.0

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        leaves = min(LEAVES, workers) if self.leaves is None else self.leaves
        return leaf_spine(workers, leaves, servers, rate_bits_s, self.oversubscription, **self.options())


def leaf_spine(
    workers: int,
    leaves: int = LEAVES,
    servers: int = 0,
    rate_bits_s: float | None = None,
    oversubscription: float = 1.0,
    delay_ns: float = 0,
    loss: float = 0.0,
    queue: int = QUEUE_FRAMES,
) -> Topology:
    """Workers spread over leaves `leaf0`, ..., whose uplinks meet in one `spine`; servers are on that.

    Args:
        oversubscription: what a full leaf's workers may send together, as a multiple of its uplink's rate.

    Raises:
        TopologyError: see Topology.
    """
    if not 1 <= leaves <= workers:
        raise TopologyError(f"{leaves} leaves for {workers} workers: at least 1, and a worker on each")
    if not 0 < oversubscription < float("inf"):
        raise TopologyError(f"an oversubscription of {oversubscription} is not above 0")
    most = -(-workers // leaves)
    up_bits_s = None if rate_bits_s is None else rate_bits_s * most / oversubscription
    names = [f"leaf{n}" for n in range(leaves)]
    cables = [Cable(name, "spine", up_bits_s, delay_ns, loss, queue) for name in names]
    for number, host in enumerate(host_names(workers, servers)):
        upper = names[leaf_of(number, workers, leaves)] if number < workers else "spine"
        cables.append(Cable(host, upper, rate_bits_s, delay_ns, loss, queue))
    return Topology(workers, servers, ("spine", *names), tuple(cables))


def leaf_of(worker: int, workers: int, leaves: int) -> int:
    """The leaf of a worker: leaf by leaf, as evenly as it goes."""
    return worker * leaves // workers
