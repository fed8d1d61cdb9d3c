"""ring+mcast: reduce-scatter around a ring; the switch multicasts each sum from where it was completed.

Source: "How to Train your DNN", sections 3.3.2 and 3.4.1.
"""

from __future__ import annotations

from hostlib.mechanisms.builtin import ring
from hostlib.mechanisms.builtin.mcast import multicast
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse, Schedule

NAME = "ring+mcast"


def schedule(world_size: int) -> Schedule:
    """n pieces; rank r completes piece r."""
    return multicast(NAME, world_size, world_size, ring.sum_shards)


def all_gather(world_size: int) -> Schedule:
    """As mcast's."""
    return multicast(NAME, world_size, world_size)


def broadcast(world_size: int) -> Schedule:
    """As mcast's."""
    return multicast(NAME, world_size, 1)


SPEC = MechanismSpec(
    NAME,
    "reduce-scatter around a ring; the switch multicasts the sums",
    schedule,
    fabric_use=FabricUse.MULTICAST,
    collectives={
        Collective.REDUCE_SCATTER: ring.reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: ring.reduce,
        Collective.ALL_TO_ALL: ring.all_to_all,
    },
)
