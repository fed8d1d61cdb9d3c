"""What lost frames cost.

The slot protocol: a packet that a rank or the switch misses is asked for again. As the ranks that wait for it ask, too,
each position of a stream takes about as many rounds as it takes until none of its packets is lost. Measured: a rank
sends 1 - (1 - loss)^(2 * links) of its packets again, to within a tenth (docs/measurements/simulator-accuracy.md).

TCP: a frame lost amid others is sent again in the next round trip, while the window keeps the link busy. The last one of
a message has none behind it that would tell of its loss, so it waits for the retransmission timeout (RFC 6298; Linux has
200 ms at least).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from hostlib.topology.topology import Cable

RETRANSMISSION_TIMEOUT_NS = 200_000_000  # the least of Linux: TCP_RTO_MIN


def rounds(cables: Iterable[Cable]) -> float:
    """How often a position of a stream of sums is sent, on average.

    Args:
        cables: of the switches and hosts that take part.
    """
    again = 1 - prod((1 - cable.loss) ** 2 for cable in cables)
    # A third round is rare: the switch has most of the sum by then.
    return 1 + again + again**2
