"""What lost frames cost.

The slot protocol: a packet that a rank or the switch misses is asked for again. As the ranks that wait for it ask, too,
each position of a stream takes about as many rounds as it takes until none of its packets is lost. Measured: a rank
sends 1 - (1 - loss)^(2 * links) of its packets again, to within a tenth (docs/measurements/simulator-accuracy.md).

TCP: a frame lost amid others is sent again in the next round trip, and halves the window, which is smaller the more is
lost (Mathis et al. 1997, "The Macroscopic Behavior of the TCP Congestion Avoidance Algorithm"). The last one of a
message has none behind it that would tell of its loss, so it waits for the retransmission timeout (RFC 6298; Linux has
200 ms at least).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod, sqrt

from hostlib.topology.topology import Cable, Topology

RETRANSMISSION_TIMEOUT_NS = 200_000_000  # the least of Linux: TCP_RTO_MIN


def rounds(cables: Iterable[Cable]) -> float:
    """How often a position of a stream of sums is sent, on average.

    Args:
        cables: of the switches and hosts that take part.
    """
    again = 1 - prod((1 - cable.loss) ** 2 for cable in cables)
    # A third round is rare: the switch has most of the sum by then.
    return 1 + again + again**2


def tcp_window(topology: Topology, segment_bytes: int) -> float:
    """Bytes of a connection between the hosts farthest from each other that are under way on average; infinite without
    loss.
    """
    arrives = 1.0
    for host in topology.hosts:
        cable, way = topology.above(host), 1.0
        while cable is not None:
            way *= 1 - cable.loss
            cable = topology.above(cable.upper)
        arrives = min(arrives, way)
    lost = 1 - arrives**2
    return segment_bytes * sqrt(1.5 / lost) if lost else float("inf")
