"""ring: reduce-scatter and all-gather around a ring of the workers.

Source: "How to Train your DNN", section 3.3.2; Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from hostlib.schedule import Operation, Receive, Schedule, Send, worker

NAME = "ring"
SUMMARY = "reduce-scatter, then all-gather; every link carries 2(n-1)/n tensors each way"


def schedule(world_size: int) -> Schedule:
    """n pieces; in step s rank r passes piece r - s on and adds piece r - s - 1, then the sums go round once more."""
    n = world_size
    nodes: dict[str, tuple[Operation, ...]] = {}
    for rank in range(n):
        after, before = worker((rank + 1) % n), worker((rank - 1) % n)
        operations: list[Operation] = []
        for step in range(n - 1):
            operations += [Send(after, (rank - step) % n), Receive(before, (rank - step - 1) % n, reduce=True)]
        for step in range(n - 1):
            operations += [Send(after, (rank + 1 - step) % n), Receive(before, (rank - step) % n, reduce=False)]
        nodes[worker(rank)] = tuple(operations)
    return Schedule(NAME, n, n, nodes)
