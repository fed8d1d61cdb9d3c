"""star: every host on one switch, called `switch`."""

from __future__ import annotations

from hostlib.topology.topology import QUEUE_FRAMES, Cable, Topology, host_names
from hostlib.topology.topology_table import TopologyTable

NAME = "star"
SUMMARY = "every host on one switch"


class Table(TopologyTable):
    """No keys of its own."""

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        return star(workers, servers, rate_bits_s, **self.options())


def star(
    workers: int,
    servers: int = 0,
    rate_bits_s: float | None = None,
    delay_ns: float = 0,
    loss: float = 0.0,
    queue: int = QUEUE_FRAMES,
    mark: tuple[int, int] | None = None,
) -> Topology:
    """Make a network with every host on one switch.

    Raises:
        TopologyError: see Topology.
    """
    hosts = host_names(workers, servers)
    cables = tuple(Cable(name, "switch", rate_bits_s, delay_ns, loss, queue, mark=mark) for name in hosts)
    return Topology(workers, servers, ("switch",), cables)
