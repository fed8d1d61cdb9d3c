"""butterfly: in each round every worker exchanges its whole tensor with one other (recursive doubling).

Source: "How to Train your DNN", section 3.3.2; Canny and Zhao 2013. If the world size is not a power of two, the
workers above the largest one hand their tensor to a lower rank first and get the sum back last (Thakur, Rabenseifner
and Gropp 2005, section 4.4). Broadcast and reduce are the binomial trees of the same exchanges (section 4.2); in the
all-to-all every two workers exchange their blocks directly (section 4.3, pairwise exchange).
"""

from __future__ import annotations

from collections.abc import Iterator

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import Operation, Receive, Schedule, Send, Symmetry, by_workers, worker

NAME = "butterfly"


def schedule(world_size: int) -> Schedule:
    """One piece; round k is with rank xor 2^k."""
    symmetry = Symmetry.XOR if _core(world_size) == world_size else Symmetry.NONE
    return by_workers(NAME, world_size, 1, _exchange, symmetry=symmetry)


def broadcast(world_size: int) -> Schedule:
    """In round k, the 2^k ranks that have the tensor send it to as many others."""
    return by_workers(NAME, world_size, 1, _spread)


def reduce(world_size: int) -> Schedule:
    """The broadcast's rounds, backwards."""
    return by_workers(NAME, world_size, 1, _collect)


def all_to_all(world_size: int) -> Schedule:
    """Every two workers exchange their blocks; (n-1)/n tensors each way, in n - 1 rounds."""
    return by_workers(NAME, world_size, world_size**2, _in_pairs)


def _core(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def _exchange(rank: int, n: int) -> Iterator[Operation]:
    core = _core(n)
    if rank >= core:
        yield Send(worker(rank - core), 0)
        yield Receive(worker(rank - core), 0, reduce=False)
        return
    beyond = rank + core
    if beyond < n:
        yield Receive(worker(beyond), 0, reduce=True)
    distance = 1
    while distance < core:
        yield Send(worker(rank ^ distance), 0)
        yield Receive(worker(rank ^ distance), 0, reduce=True)
        distance *= 2
    if beyond < n:
        yield Send(worker(beyond), 0)


def _relatives(rank: int, n: int) -> tuple[int, list[int]]:
    """A rank's parent in the binomial tree below rank 0, and its children, nearest first."""
    first = 1 << rank.bit_length()
    distances = (first << doubled for doubled in range(n.bit_length()))
    return rank - (first >> 1), [rank + distance for distance in distances if rank + distance < n]


def _spread(rank: int, n: int) -> Iterator[Operation]:
    parent, children = _relatives(rank, n)
    if rank > 0:
        yield Receive(worker(parent), 0, reduce=False)
    yield from (Send(worker(child), 0) for child in children)


def _collect(rank: int, n: int) -> Iterator[Operation]:
    parent, children = _relatives(rank, n)
    yield from (Receive(worker(child), 0, reduce=True) for child in reversed(children))
    if rank > 0:
        yield Send(worker(parent), 0)


def _in_pairs(rank: int, n: int) -> Iterator[Operation]:
    for step in range(1, n):
        to, source = (rank ^ step,) * 2 if _core(n) == n else ((rank + step) % n, (rank - step) % n)
        yield Send(worker(to), rank * n + to)
        yield Receive(worker(source), source * n + rank, reduce=False)


SPEC = MechanismSpec(
    NAME,
    "log2 n rounds; in each, every worker exchanges the whole tensor with one other",
    schedule,
    collectives={
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: reduce,
        Collective.ALL_TO_ALL: all_to_all,
    },
)
