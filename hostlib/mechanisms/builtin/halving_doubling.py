"""halving-doubling: reduce-scatter by halving what is exchanged in every round, all-gather by doubling it.

Source for powers of two: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.5. For other world sizes:
Traeff 2024, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", with the same volume in ceil(log2 n)
rounds; each rank sends to one at a distance ahead and receives from the one at that distance behind. The all-to-all
relays blocks in as many rounds (Bruck et al. 1997, "Efficient Algorithms for All-to-All Communications").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Operation, Phase, Receive, Schedule, Send, Symmetry, by_workers, worker

NAME = "halving-doubling"


def schedule(world_size: int) -> Schedule:
    """n pieces; rank r sums piece r."""
    return _in_shards(world_size, _halve, _double)


def reduce_scatter(world_size: int) -> Schedule:
    """The first half of the all-reduce."""
    return _in_shards(world_size, _halve)


def all_gather(world_size: int) -> Schedule:
    """The second half of the all-reduce."""
    return _in_shards(world_size, _double)


def all_to_all(world_size: int) -> Schedule:
    """Half of all blocks move in each of log2 n rounds: log2(n)/2 tensors each way."""
    return by_workers(NAME, world_size, world_size**2, _relay)


def _in_shards(n: int, *phases: Phase) -> Schedule:
    return by_workers(NAME, n, n, *phases, symmetry=Symmetry.XOR if _is_power(n) else Symmetry.ROTATION)


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


def _halve(rank: int, n: int) -> Iterator[Operation]:
    if not _is_power(n):
        yield from _halve_in_circles(rank, n)
        return
    for bit in reversed(range(n.bit_length() - 1)):
        peer, distance = rank ^ 1 << bit, 1 << bit
        yield from _round(peer, _with(peer, distance), peer, _with(rank, distance), reduce=True)


def _double(rank: int, n: int) -> Iterator[Operation]:
    if not _is_power(n):
        yield from _double_in_circles(rank, n)
        return
    for bit in range(n.bit_length() - 1):
        peer, distance = rank ^ 1 << bit, 1 << bit
        yield from _round(peer, _with(rank, distance), peer, _with(peer, distance), reduce=False)


def _with(rank: int, distance: int) -> Iterator[int]:
    """The pieces that a rank holds in the round of that distance: they differ from its number only in lower bits."""
    return (rank ^ lower for lower in range(distance))


def _halve_in_circles(rank: int, n: int) -> Iterator[Operation]:
    """Operations of a rank if the world size is not a power of two.

    Of the `wide` pieces from its own on that a rank adds to, it sends all but the first `narrow` away: to the rank
    whose own piece is the first of those.
    """
    for wide, narrow in pairwise(_widths(n)):
        ahead, behind = (rank + narrow) % n, (rank - narrow) % n
        yield from _round(ahead, _from(ahead, wide - narrow, n), behind, _from(rank, wide - narrow, n), reduce=True)


def _double_in_circles(rank: int, n: int) -> Iterator[Operation]:
    for wide, narrow in reversed(list(pairwise(_widths(n)))):
        ahead, behind = (rank + narrow) % n, (rank - narrow) % n
        yield from _round(behind, _from(rank, wide - narrow, n), ahead, _from(ahead, wide - narrow, n), reduce=False)


def _relay(rank: int, n: int) -> Iterator[Operation]:
    """In round k the blocks move on by 2^k whose ranks' distance has that bit."""
    step = 1
    while step < n:
        ahead, behind = (rank + step) % n, (rank - step) % n
        yield from _round(ahead, _moving(rank, step, n), behind, _moving(behind, step, n), reduce=False)
        step *= 2


def _moving(rank: int, step: int, n: int) -> Iterator[int]:
    """The blocks that leave a rank in that round: they have come as far as their distance's lower bits say."""
    for distance in range(n):
        if distance & step:
            source = (rank - distance % step) % n
            yield source * n + (source + distance) % n


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
    collectives={
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.ALL_TO_ALL: all_to_all,
    },
)
