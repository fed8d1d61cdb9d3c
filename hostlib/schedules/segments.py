"""Segments of the messages between hosts: how long they are, and how many a host requests before it needs them."""

from __future__ import annotations

from collections.abc import Iterable

from hostlib.schedules.schedule import Operation, Receive

SEGMENT_BYTES = 1 << 20  # one segment is added while the next ones arrive
SEGMENTS_AHEAD = 32  # at least this many segments are requested before they are needed


def senders(operations: Iterable[Operation]) -> set[str]:
    """The nodes that send to the host of these operations."""
    return {operation.peer for operation in operations if isinstance(operation, Receive)}


def segments_ahead(senders: int, longest: int) -> int:
    """How many segments a host requests before it needs them: two per host that sends to it, and all of two operations.

    With fewer, hosts with long pieces could wait for each other in a circle.

    Args:
        senders: number of nodes that send to it.
        longest: segments of the longest piece.
    """
    return max(SEGMENTS_AHEAD, 2 * senders, 2 * longest)
