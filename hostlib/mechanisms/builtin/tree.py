"""tree: two binary trees, each for half of the tensor; the inner nodes of one are the leaves of the other.

Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Operation, Receive, Schedule, Send, by_workers, worker

NAME = "tree"

Relatives = tuple[str | None, list[str]]  # parent and children of a rank in a tree
Trees = Callable[[int, int], Sequence[Relatives]]
Way = Callable[[Sequence[Relatives], int], Iterator[Operation]]


def schedule(world_size: int, *, pieces: int = 8) -> Schedule:
    """Sums go up to the root and down again.

    Args:
        pieces: even ones take the first tree, odd ones the second; they are pipelined.
    """
    return _in_trees(world_size, pieces, _two_trees, _up, _down)


def reduce(world_size: int, *, pieces: int = 8) -> Schedule:
    """Sums go up to rank 0, which is above both trees."""
    return _in_trees(world_size, pieces, _below_rank_0, _up)


def broadcast(world_size: int, *, pieces: int = 8) -> Schedule:
    """Pieces go down from rank 0, which is above both trees."""
    return _in_trees(world_size, pieces, _below_rank_0, _down)


def _in_trees(n: int, pieces: int, trees: Trees, *ways: Way) -> Schedule:
    if pieces < 1:
        raise ScheduleError(f"{NAME}: pieces must be at least 1, not {pieces}")
    return by_workers(NAME, n, pieces, *(partial(_along, way, trees, pieces) for way in ways))


def _along(way: Way, trees: Trees, pieces: int, rank: int, n: int) -> Iterator[Operation]:
    return way(trees(rank, n), pieces)


def _up(trees: Sequence[Relatives], pieces: int) -> Iterator[Operation]:
    # A leaf waits for nothing, so it sends as a leaf of one tree before it waits as an inner node of the other.
    for inner in (False, True):
        for piece in range(pieces):
            parent, children = trees[piece % 2]
            if bool(children) == inner:
                yield from (Receive(child, piece, reduce=True) for child in children)
                if parent is not None:
                    yield Send(parent, piece)


def _down(trees: Sequence[Relatives], pieces: int) -> Iterator[Operation]:
    for piece in range(pieces):
        parent, children = trees[piece % 2]
        if parent is not None:
            yield Receive(parent, piece, reduce=False)
        yield from (Send(child, piece) for child in children)


def _two_trees(rank: int, n: int) -> tuple[Relatives, Relatives]:
    return _neighbours(rank, n, 0), _neighbours(rank, n, n // 2)


def _below_rank_0(rank: int, n: int) -> tuple[Relatives, Relatives]:
    """The same, but rank 0 is above the second tree's root, too, and not a leaf of it."""
    first, (parent, children) = _two_trees(rank, n)
    if n > 1 and rank == 0:
        return first, (None, [worker(n // 2)])
    if rank == n // 2:
        parent = worker(0)
    return first, (parent if rank > 0 else None, [child for child in children if child != worker(0)])


def _neighbours(rank: int, n: int, shift: int) -> Relatives:
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
    collectives={Collective.REDUCE: reduce, Collective.BROADCAST: broadcast},
)
