"""halving-doubling: reduce-scatter by halving what is exchanged in every round, all-gather by doubling it.

Source for powers of two: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.5. For other world sizes:
Traeff 2024, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", with the same volume in ceil(log2 n)
rounds; each rank sends to one at a distance ahead and receives from the one at that distance behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, worker

NAME = "halving-doubling"


def schedule(world_size: int) -> Schedule:
    """n pieces; rank r sums piece r."""
    n = world_size
    if n & (n - 1) == 0:
        return Schedule(NAME, n, n, Lists({worker(r): partial(_in_pairs, r, n) for r in range(n)}), Symmetry.XOR)
    return Schedule(NAME, n, n, Lists({worker(r): partial(_in_circles, r, n) for r in range(n)}), Symmetry.ROTATION)


def _in_pairs(rank: int, n: int) -> Iterator[Operation]:
    distances = [1 << bit for bit in range(n.bit_length() - 1)]
    for distance in reversed(distances):
        peer = rank ^ distance
        yield from _round(peer, _with(peer, distance), peer, _with(rank, distance), reduce=True)
    for distance in distances:
        peer = rank ^ distance
        yield from _round(peer, _with(rank, distance), peer, _with(peer, distance), reduce=False)


def _with(rank: int, distance: int) -> Iterator[int]:
    """The pieces that a rank holds in the round of that distance: they differ from its number only in lower bits."""
    return (rank ^ lower for lower in range(distance))


def _in_circles(rank: int, n: int) -> Iterator[Operation]:
    """Operations of a rank if the world size is not a power of two.

    Of the `wide` pieces from its own on that a rank adds to, it sends all but the first `narrow` away: to the rank
    whose own piece is the first of those.
    """
    rounds = list(pairwise(_widths(n)))
    for wide, narrow in rounds:
        ahead, behind = (rank + narrow) % n, (rank - narrow) % n
        yield from _round(ahead, _from(ahead, wide - narrow, n), behind, _from(rank, wide - narrow, n), reduce=True)
    for wide, narrow in reversed(rounds):
        ahead, behind = (rank + narrow) % n, (rank - narrow) % n
        yield from _round(behind, _from(rank, wide - narrow, n), ahead, _from(ahead, wide - narrow, n), reduce=False)


def _widths(n: int) -> Iterator[int]:
    """n and its halves, rounded up, down to 1."""
    yield n
    while n > 1:
        n = (n + 1) // 2
        yield n


def _from(first: int, count: int, n: int) -> Iterator[int]:
    return ((first + step) % n for step in range(count))


def _round(to: int, sent: Iterable[int], source: int, received: Iterable[int], reduce: bool) -> Iterator[Operation]:
    yield from (Send(worker(to), piece) for piece in sent)
    yield from (Receive(worker(source), piece, reduce) for piece in received)


SPEC = MechanismSpec(
    NAME,
    "halves are exchanged, then quarters, ... and back; 2(n-1)/n tensors each way in 2 log2 n rounds",
    schedule,
)
