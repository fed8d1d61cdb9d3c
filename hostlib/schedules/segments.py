"""How many segments of the messages between hosts a host requests before it needs them."""

from __future__ import annotations

from collections.abc import Iterable

from hostlib.schedules.schedule import Operation, Receive

SEGMENTS_AHEAD = 32  # at least this many segments are requested before they are needed
SERVERS_SEGMENTS_AHEAD = 8  # of a server, for all senders


def segments_ahead(operations: Iterable[Operation], longest: int, server: bool) -> int:
    """How many segments a host requests before it needs them.

    A server requests a few of each sender, since a sender that is faster than others gets so far ahead of them, and its
    next tensor would delay theirs. Another host requests two per sender, and all of two operations. With fewer, hosts
    with long pieces could wait for each other in a circle.

    Args:
        operations: of the host.
        longest: segments of the longest piece.
        server: it is a server.

    Returns:
        A server's segments of one sender, else those of all senders.
    """
    senders = len({operation.peer for operation in operations if isinstance(operation, Receive)})
    if server:
        return max(2, SERVERS_SEGMENTS_AHEAD // max(1, senders))
    return max(SEGMENTS_AHEAD, 2 * senders, 2 * longest)
