"""How many slots a group asks for, so that many groups find room on a switch."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.http_client import HttpError, get

PARTS = 4  # of what is free
FEWEST = 4  # with fewer slots a rank would wait for each packet's round trip


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
    slots = torch.tensor([_room(controller, lanes) if rank == 0 else 0])
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
    gloo.allreduce([slots], options).wait()
    return int(slots)


def _room(controller: str, lanes: int) -> int:
    with suppress(HttpError, KeyError, TypeError):
        answer = get(controller, "/slots")
        share: int = (answer["slots"] - answer["used"]) // (PARTS * lanes)
        return min(SLOTS_PER_POOL, max(FEWEST, 1 << max(0, share.bit_length() - 1)))
    return SLOTS_PER_POOL  # Whoever joins next says what is wrong.
