"""Which pairs there are, and which shard holds which. Torch-free.

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
    """What is sent and updated at once, and the shard that holds it.

    Attributes:
        number: its key.
        bucket, start, end: which elements are in it.
    """

    number: int
    shard: int
    bucket: int
    start: int
    end: int


def make_pairs(buckets: Sequence[int], shards: int) -> list[PairRange]:
    """Buckets of so many elements in pairs of at most 2 MB, dealt out over the shards as equally as it goes."""
    found: list[PairRange] = []
    for bucket, elements in enumerate(buckets):
        owners = placement(shards, "pairs", ELEMENT_BYTES * elements, turn=len(found))
        for shard, (start, end) in zip(owners, piece_bounds(elements, len(owners)), strict=True):
            found.append(PairRange(len(found), shard, bucket, start, end))
    return found
