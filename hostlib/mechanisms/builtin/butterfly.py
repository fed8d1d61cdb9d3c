"""butterfly: in each round every worker exchanges its whole tensor with one other (recursive doubling).

Source: "How to Train your DNN", section 3.3.2; Canny and Zhao 2013. If the world size is not a power of two, the
workers above the largest one hand their tensor to a lower rank first and get the sum back last (Thakur, Rabenseifner
and Gropp 2005, section 4.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, worker

NAME = "butterfly"


def schedule(world_size: int) -> Schedule:
    """One piece; round k is with rank xor 2^k."""
    n = world_size
    core = 1 << (n.bit_length() - 1)
    makers = {worker(rank): partial(_worker, rank, n, core) for rank in range(n)}
    return Schedule(NAME, n, 1, Lists(makers), Symmetry.XOR if core == n else Symmetry.NONE)


def _worker(rank: int, n: int, core: int) -> Iterator[Operation]:
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


SPEC = MechanismSpec(
    NAME,
    "log2 n rounds; in each, every worker exchanges the whole tensor with one other",
    schedule,
)
