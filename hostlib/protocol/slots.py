"""How many slots a job has on a switch."""

from __future__ import annotations

from hostlib.protocol import constants

SLOTS_PER_POOL = 128  # of sums, unless a job asks for another number
LARGEST_POOLS = 4  # pools of slots of a job: a rank has a lane, with a UDP port, for each
ECHO_SLOT = 0xFFFF  # of packets by which a rank shows at which port it is: no slot that there is
POOLS_OF_STREAMS = 2  # a job whose streams share slots, each having few, has as many as so many pools


def slots_of_stream(streams: int, pool: int = SLOTS_PER_POOL) -> int:
    """Slots of each of a job's streams: of a source's chunks, or of an owner's shard.

    Args:
        streams: of the job.
        pool: slots of a pool of sums.

    Returns:
        A power of two; 0 where they are too many.
    """
    share = POOLS_OF_STREAMS * pool // streams
    return 1 << share.bit_length() - 1 if share else 0


assert POOLS_OF_STREAMS * SLOTS_PER_POOL <= constants.SLOTS // 4, "four such jobs find room on a switch"
