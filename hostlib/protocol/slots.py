"""How many slots a job has on a switch."""

from __future__ import annotations

from hostlib.protocol import constants

SLOTS_PER_POOL = 128  # of sums, unless a job asks for another number
LARGEST_POOLS = 4  # pools of slots of a job: a rank has a lane, with a UDP port, for each
ECHO_SLOT = 0xFFFF  # of packets by which a rank shows at which port it is: no slot that there is
POOLS_OF_CHUNKS = 2  # a job whose streams of chunks share slots has as many as so many pools


def slots_of_stream(streams: int, pool: int = SLOTS_PER_POOL) -> int:
    """Slots of each of a job's streams of chunks.

    Args:
        streams: of the job.
        pool: slots of a pool of sums.

    Returns:
        A power of two; 0 where they are too many.
    """
    return _share(POOLS_OF_CHUNKS * pool, streams)


def slots_of_owner(owners: int, pool: int = SLOTS_PER_POOL) -> int:
    """Slots of each owner of a shard: a job of reduce-scatters has as many as a pool of sums. See slots_of_stream."""
    return _share(pool, owners)


def _share(slots: int, among: int) -> int:
    share = slots // among
    return 1 << share.bit_length() - 1 if share else 0


assert POOLS_OF_CHUNKS * SLOTS_PER_POOL <= constants.SLOTS // 2, "two such jobs find room on a switch"
