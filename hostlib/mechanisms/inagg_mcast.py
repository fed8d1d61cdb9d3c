"""inagg+mcast: the switch sums every rank's tensor and multicasts the result.

Source: "How to Train your DNN", sections 3.4.1 and 3.4.2, combined and without a server; docs/protocol.md.
"""

from __future__ import annotations

from hostlib.schedule import SWITCH, Aggregate, Multicast, Receive, Schedule, Send, worker

NAME = "inagg+mcast"
SUMMARY = "the switch sums and multicasts the result; every link carries the tensor once each way"


def schedule(world_size: int) -> Schedule:
    """Workers send everything up and get everything back."""
    workers = tuple(worker(rank) for rank in range(world_size))
    return Schedule(
        NAME,
        world_size,
        1,
        {
            **{node: (Send(SWITCH, 0), Receive(SWITCH, 0, reduce=False)) for node in workers},
            SWITCH: (Aggregate(workers, 0), Multicast(workers, 0)),
        },
    )
