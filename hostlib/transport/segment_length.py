"""How long the segments are in which messages between hosts leave."""

from __future__ import annotations

SEGMENT_BYTES = 1 << 20  # one segment is added while the next ones arrive
LEAST_SEGMENT_BYTES = 1 << 17


def shrunk_segment_bytes(shrink: float) -> int:
    """Length of a segment of messages that are so many times shorter than those they stand for."""
    return max(LEAST_SEGMENT_BYTES, round(SEGMENT_BYTES / shrink))
