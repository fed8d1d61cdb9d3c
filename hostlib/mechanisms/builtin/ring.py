"""ring: reduce-scatter and all-gather around a ring of the workers.

Source: "How to Train your DNN", sections 3.3.2 and 9.2; Patarasuk and Yuan 2009. Ranks are numbered rack by rack, so
that in a leaf-spine network the ring enters and leaves each rack once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, worker

NAME = "ring"


def schedule(world_size: int, turn: int, *, split: bool = True) -> Schedule:
    """Every worker passes pieces on to the next one.

    Args:
        split: cut the tensor into n pieces that all move at once. Otherwise the tensor goes round as one piece,
            starting at rank `turn` mod n: once to be summed, once more to distribute the sum.
    """
    n = world_size
    if split:
        makers = {worker(rank): partial(_split, rank, n) for rank in range(n)}
        return Schedule(NAME, n, n, Lists(makers), Symmetry.ROTATION)
    return Schedule(NAME, n, 1, Lists({worker(rank): partial(_whole, rank, n, turn % n) for rank in range(n)}))


def _split(rank: int, n: int) -> Iterator[Operation]:
    after, before = worker((rank + 1) % n), worker((rank - 1) % n)
    for step in range(n - 1):
        yield Send(after, (rank - step) % n)
        yield Receive(before, (rank - step - 1) % n, reduce=True)
    for step in range(n - 1):
        yield Send(after, (rank + 1 - step) % n)
        yield Receive(before, (rank - step) % n, reduce=False)


def _whole(rank: int, n: int, first: int) -> Iterator[Operation]:
    after, before, place = worker((rank + 1) % n), worker((rank - 1) % n), (rank - first) % n
    if place > 0:
        yield Receive(before, 0, reduce=True)
    if place < n - 1:
        yield Send(after, 0)
        yield Receive(before, 0, reduce=False)
    # The last of the first round begins the second, which ends before it.
    if n > 1 and place != n - 2:
        yield Send(after, 0)


SPEC = MechanismSpec(
    NAME,
    "reduce-scatter, then all-gather; every link carries 2(n-1)/n tensors each way",
    schedule,
)
