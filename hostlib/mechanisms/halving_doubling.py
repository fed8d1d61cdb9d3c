"""halving-doubling: reduce-scatter by recursive halving, all-gather by recursive doubling.

Source: Rabenseifner 2004; Thakur, Rabenseifner and Gropp 2005, section 4.5. Where the world size is no power of two,
the workers past it hand their tensor to one below first and get the sum back last.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, worker

NAME = "halving-doubling"
SUMMARY = "halves are exchanged, then quarters, ... and back; 2(n-1)/n tensors each way in 2 log2 n rounds"


def schedule(world_size: int) -> Schedule:
    """As many pieces as the largest power of two has workers; rank r sums piece r."""
    n = world_size
    core = 1 << (n.bit_length() - 1)
    makers = {worker(rank): partial(_worker, rank, n, core) for rank in range(n)}
    return Schedule(NAME, n, core, Lists(makers), Symmetry.XOR if core == n else Symmetry.NONE)


def _worker(rank: int, n: int, core: int) -> Iterator[Operation]:
    if rank >= core:
        yield from (Send(worker(rank - core), piece) for piece in range(core))
        yield from (Receive(worker(rank - core), piece, reduce=False) for piece in range(core))
        return
    beyond = rank + core
    if beyond < n:
        yield from (Receive(worker(beyond), piece, reduce=True) for piece in range(core))
    distance = core // 2
    while distance > 0:
        peer = rank ^ distance
        yield from (Send(worker(peer), piece) for piece in _pieces_of(peer, distance))
        yield from (Receive(worker(peer), piece, reduce=True) for piece in _pieces_of(rank, distance))
        distance //= 2
    distance = 1
    while distance < core:
        peer = rank ^ distance
        yield from (Send(worker(peer), piece) for piece in _pieces_of(rank, distance))
        yield from (Receive(worker(peer), piece, reduce=False) for piece in _pieces_of(peer, distance))
        distance *= 2
    if beyond < n:
        yield from (Send(worker(beyond), piece) for piece in range(core))


def _pieces_of(rank: int, distance: int) -> Iterator[int]:
    """What a rank has in the round of that distance: the pieces that differ from its number in lower bits only."""
    yield from (rank ^ lower for lower in range(distance))
