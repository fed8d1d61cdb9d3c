"""ring+mcast: reduce-scatter around a ring; the switch multicasts each sum from where it was completed.

Source: "How to Train your DNN", sections 3.3.2 and 3.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import SWITCH, FabricUse, Lists, Multicast, Operation, Receive, Schedule, Send, worker

NAME = "ring+mcast"


def schedule(world_size: int) -> Schedule:
    """n pieces; rank r completes piece r + 1."""
    n = world_size
    makers = {worker(rank): partial(_worker, rank, n) for rank in range(n)}
    if n > 1:
        return Schedule(NAME, n, n, Lists({**makers, SWITCH: partial(_switch, n)}))
    return Schedule(NAME, n, n, Lists(makers))


def _worker(rank: int, n: int) -> Iterator[Operation]:
    after, before = worker((rank + 1) % n), worker((rank - 1) % n)
    for step in range(n - 1):
        yield Send(after, (rank - step) % n)
        yield Receive(before, (rank - step - 1) % n, reduce=True)
    if n > 1:
        yield Send(SWITCH, (rank + 1) % n)
    for owner in range(n):
        if owner != rank:
            yield Receive(SWITCH, (owner + 1) % n, reduce=False)


def _switch(n: int) -> Iterator[Operation]:
    for owner in range(n):
        yield Receive(worker(owner), (owner + 1) % n, reduce=False)
        yield Multicast(tuple(worker(rank) for rank in range(n) if rank != owner), (owner + 1) % n)


SPEC = MechanismSpec(
    NAME,
    "reduce-scatter around a ring; the switch multicasts the sums",
    schedule,
    fabric_use=FabricUse.MULTICAST,
)
