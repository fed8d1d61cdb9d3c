"""ring: reduce-scatter and all-gather around a ring of the workers.

Source: "How to Train your DNN", sections 3.3.2 and 9.2; Patarasuk and Yuan 2009. Ranks are numbered rack by rack, so
that in a leaf-spine network the ring enters and leaves each rack once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import (
    Lists,
    Operation,
    Phase,
    Receive,
    Schedule,
    Send,
    Symmetry,
    by_workers,
    worker,
)

NAME = "ring"
PIECES_PER_RANK = 4  # of a broadcast or reduce, whose pieces follow each other from rank to rank


def schedule(world_size: int, turn: int, *, split: bool = True) -> Schedule:
    """Every worker passes pieces on to the next one.

    Args:
        split: cut the tensor into n pieces that all move at once. Otherwise the tensor goes round as one piece,
            starting at rank `turn` mod n: once to be summed, once more to distribute the sum.
    """
    n = world_size
    if split:
        return _in_shards(n, sum_shards, _gather_shards)
    return Schedule(NAME, n, 1, Lists({worker(rank): partial(_whole, rank, n, turn % n) for rank in range(n)}))


def reduce_scatter(world_size: int) -> Schedule:
    """The first half of the all-reduce."""
    return _in_shards(world_size, sum_shards)


def all_gather(world_size: int) -> Schedule:
    """The second half of the all-reduce."""
    return _in_shards(world_size, _gather_shards)


def broadcast(world_size: int) -> Schedule:
    """Pieces follow each other from rank 0 to the last."""
    return by_workers(NAME, world_size, PIECES_PER_RANK * world_size, _pass_on)


def reduce(world_size: int) -> Schedule:
    """Pieces follow each other from the last rank to rank 0, and are added to on their way."""
    return by_workers(NAME, world_size, PIECES_PER_RANK * world_size, _add_on_the_way)


def all_to_all(world_size: int) -> Schedule:
    """Blocks travel round the ring to their ranks: (n-1)/2 tensors over each link, each way."""
    return by_workers(NAME, world_size, world_size**2, _deliver)


def _in_shards(n: int, *phases: Phase) -> Schedule:
    return by_workers(NAME, n, n, *phases, symmetry=Symmetry.ROTATION)


def sum_shards(rank: int, n: int) -> Iterator[Operation]:
    """Of n pieces; rank r completes piece r."""
    after, before = worker((rank + 1) % n), worker((rank - 1) % n)
    for step in range(1, n):
        yield Send(after, (rank - step) % n)
        yield Receive(before, (rank - step - 1) % n, reduce=True)


def _gather_shards(rank: int, n: int) -> Iterator[Operation]:
    after, before = worker((rank + 1) % n), worker((rank - 1) % n)
    for step in range(n - 1):
        yield Send(after, (rank - step) % n)
        yield Receive(before, (rank - step - 1) % n, reduce=False)


def _pass_on(rank: int, n: int) -> Iterator[Operation]:
    for piece in range(PIECES_PER_RANK * n):
        if rank > 0:
            yield Receive(worker(rank - 1), piece, reduce=False)
        if rank < n - 1:
            yield Send(worker(rank + 1), piece)


def _add_on_the_way(rank: int, n: int) -> Iterator[Operation]:
    for piece in range(PIECES_PER_RANK * n):
        if rank < n - 1:
            yield Receive(worker(rank + 1), piece, reduce=True)
        if rank > 0:
            yield Send(worker(rank - 1), piece)


def _deliver(rank: int, n: int) -> Iterator[Operation]:
    """In each step a rank passes on the blocks of one source that have not arrived."""
    for step in range(1, n):
        mine, theirs = (rank - step + 1) % n, (rank - step) % n
        for distance in range(step, n):
            yield Send(worker((rank + 1) % n), mine * n + (mine + distance) % n)
        for distance in range(step, n):
            yield Receive(worker((rank - 1) % n), theirs * n + (theirs + distance) % n, reduce=False)


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
    collectives={
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: reduce,
        Collective.ALL_TO_ALL: all_to_all,
    },
)
