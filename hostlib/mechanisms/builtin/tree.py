"""tree: two binary trees, each for half of the tensor; the inner nodes of one are the leaves of the other.

Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, worker

NAME = "tree"


def schedule(world_size: int, *, pieces: int = 8) -> Schedule:
    """Sums go up to the root and down again.

    Args:
        pieces: even ones take the first tree, odd ones the second; they are pipelined.
    """
    if pieces < 1:
        raise ScheduleError(f"{NAME}: pieces must be at least 1, not {pieces}")
    makers = {worker(rank): partial(_worker, rank, world_size, pieces) for rank in range(world_size)}
    return Schedule(NAME, world_size, pieces, Lists(makers))


def _worker(rank: int, n: int, pieces: int) -> Iterator[Operation]:
    trees = [_neighbours(rank, n, 0), _neighbours(rank, n, n // 2)]
    # A leaf waits for nothing, so it sends as a leaf of one tree before it waits as an inner node of the other.
    for inner in (False, True):
        for piece in range(pieces):
            parent, children = trees[piece % 2]
            if bool(children) == inner:
                yield from (Receive(child, piece, reduce=True) for child in children)
                if parent is not None:
                    yield Send(parent, piece)
    for piece in range(pieces):
        parent, children = trees[piece % 2]
        if parent is not None:
            yield Receive(parent, piece, reduce=False)
        yield from (Send(child, piece) for child in children)


def _neighbours(rank: int, n: int, shift: int) -> tuple[str | None, list[str]]:
    """Parent and children of a rank in a heap-shaped tree whose place i holds rank i + shift.

    The inner places of the shifted tree hold the ranks at the outer places of the unshifted one.
    """
    place = (rank - shift) % n
    parent = worker(((place - 1) // 2 + shift) % n) if place > 0 else None
    children = [worker((child + shift) % n) for child in (2 * place + 1, 2 * place + 2) if child < n]
    return parent, children


SPEC = MechanismSpec(
    NAME,
    "up and down two binary trees, piece by piece; logarithmic latency, at most two tensors each way",
    schedule,
)
