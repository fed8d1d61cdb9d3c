"""leaf-spine: workers spread over leaf switches, whose uplinks lead to one spine; servers are on the spine.

With several spines, each leaf has an uplink to every one. `spine` then stands for all: a leaf's uplinks are equal cables,
over which hosts' streams are spread by a hash (equal-cost multipath). The first spine is the one that sums. Servers are on
the leaves.
"""

from __future__ import annotations

from hostlib.topology.topology import MOST_PARALLEL, QUEUE_FRAMES, Cable, Topology, TopologyError, host_names
from hostlib.topology.topology_table import TopologyTable

NAME = "leaf-spine"
SUMMARY = "a leaf switch for each rack of workers, below one spine or several"
LEAVES = 4  # the default number of leaves


class Table(TopologyTable):
    """Keys of a leaf-spine topology.

    Attributes:
        leaves: 4 by default, or one for each worker if there are fewer.
        oversubscription: total rate of a full leaf's workers, as a multiple of its uplinks' rates together.
        spines: uplinks of each leaf, which share that rate; more than one can be simulated, but not emulated.
    """

    leaves: int | None = None
    oversubscription: float = 1.0
    spines: int = 1

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        leaves = min(LEAVES, workers) if self.leaves is None else self.leaves
        options = self.options()
        return leaf_spine(workers, leaves, servers, rate_bits_s, self.oversubscription, spines=self.spines, **options)


def leaf_spine(
    workers: int,
    leaves: int = LEAVES,
    servers: int = 0,
    rate_bits_s: float | None = None,
    oversubscription: float = 1.0,
    delay_ns: float = 0,
    loss: float = 0.0,
    queue: int = QUEUE_FRAMES,
    spines: int = 1,
    mark: tuple[int, int] | None = None,
) -> Topology:
    """Make a network of workers on leaves `leaf0`, ..., whose uplinks lead to `spine`; servers are on the spine.

    Args:
        oversubscription: total rate of a full leaf's workers, as a multiple of its uplinks' rates together.
        spines: uplinks of each leaf; with more than one, servers are on the leaves in turn.

    Raises:
        TopologyError: see Topology.
    """
    if not 1 <= leaves <= workers:
        raise TopologyError(f"{leaves} leaves for {workers} workers: at least 1, and a worker on each")
    if not 0 < oversubscription < float("inf"):
        raise TopologyError(f"oversubscription must be above 0, not {oversubscription}")
    most = -(-workers // leaves)
    if not 1 <= spines <= MOST_PARALLEL:
        raise TopologyError(f"spines must be 1 to {MOST_PARALLEL}, not {spines}")
    up_bits_s = None if rate_bits_s is None else rate_bits_s * most / oversubscription / spines
    names = [f"leaf{n}" for n in range(leaves)]
    cables = [Cable(name, "spine", up_bits_s, delay_ns, loss, queue, spines, mark) for name in names]
    for number, host in enumerate(host_names(workers, servers)):
        upper = names[leaf_of(number, workers, leaves)] if number < workers else "spine"
        if number >= workers and spines > 1:
            upper = names[(number - workers) % leaves]
        cables.append(Cable(host, upper, rate_bits_s, delay_ns, loss, queue, mark=mark))
    return Topology(workers, servers, ("spine", *names), tuple(cables))


def leaf_of(worker: int, workers: int, leaves: int) -> int:
    """The leaf of a worker: workers fill leaf by leaf, as evenly as possible."""
    return worker * leaves // workers
