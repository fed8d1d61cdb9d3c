"""Partition the parameters into pairs, and assign these to shards. Torch-free.

Source: "Poseidon", section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostlib.schedules.schedule import piece_bounds
from hostlib.schedules.sharding import placement

ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class PairRange:
    """A key-value pair, the unit of sending and updating, and its shard.

    Attributes:
        number: its key.
        bucket, start, end: its elements.
    """

    number: int
    shard: int
    bucket: int
    start: int
    end: int


def make_pairs(buckets: Sequence[int], shards: int) -> list[PairRange]:
    """Split buckets of given sizes into pairs of at most 2 MB, distributed over the shards as evenly as possible."""
    found: list[PairRange] = []
    for bucket, elements in enumerate(buckets):
        owners = placement(shards, "pairs", ELEMENT_BYTES * elements, turn=len(found))
        for shard, (start, end) in zip(owners, piece_bounds(elements, len(owners)), strict=True):
            found.append(PairRange(len(found), shard, bucket, start, end))
    return found
