"""How many slots a group asks for, so that many groups find room on a switch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from hostlib.errors import JoinError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.http_client import HttpError, get
from hostlib.transport.agreement import reduce_by_gloo

PARTS = 4  # of what is free
FEWEST = 4  # with fewer slots a rank would wait for each packet's round trip
UNKNOWN = 1 << 30  # slots that are free; whoever joins next says what is wrong


def choose_slots(gloo: Any, rank: int, mechanism: Mechanism, controller: str, lanes: int, wanted: int | None) -> int:
    """Slots of each pool, the same on all ranks: as many as wanted.

    Without a wish they are SLOTS_PER_POOL, but no more than a quarter of what is free: groups that ask at the same time,
    as a mesh's rows do, find room, and the next one, too.

    Args:
        gloo: torch.distributed.ProcessGroupGloo over the ranks; used by the calling thread alone.
    """
    if wanted is not None:
        return wanted
    if mechanism.build is None or mechanism.fabric_use is None:
        return SLOTS_PER_POOL
    share = _free(gloo, rank, controller) // (PARTS * lanes)
    return min(SLOTS_PER_POOL, max(FEWEST, 1 << max(0, share.bit_length() - 1)))


def require_room(gloo: Any, rank: int, controller: str, takes: int, leaves: int) -> None:
    """Check that a place of so many slots leaves others free. Raises JoinError on all ranks alike, if it does not.

    Args:
        gloo: as above.
    """
    free = _free(gloo, rank, controller)
    if free < takes + leaves:
        raise JoinError(f"{takes} slots are needed, with {leaves} left for the group's sums, and {free} are free")


def _free(gloo: Any, rank: int, controller: str) -> int:
    """Slots that rank 0 finds free; the same on all ranks."""
    free = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        free[0] = UNKNOWN
        with suppress(HttpError, KeyError, TypeError):
            answer = get(controller, "/slots")
            free[0] = answer["slots"] - answer["used"]
    reduce_by_gloo(gloo, free, dist.ReduceOp.MAX)
    return int(free)
