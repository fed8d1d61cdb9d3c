"""inagg: the switch sums on the way to a parameter server, which sends the sum back to each worker.

Source: "How to Train your DNN", section 3.4.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import (
    SWITCH,
    Aggregate,
    FabricUse,
    Operation,
    Receive,
    Schedule,
    Send,
    server,
)
from hostlib.schedules.sharding import Assign, placement, with_servers

NAME = "inagg"


def schedule(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Up through the switch's sum, and n times down from the server."""
    owners = placement(servers, assign, size, turn)
    return with_servers(NAME, world_size, servers, owners, _worker, _server, _switch)


def _worker(_rank: int, owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece in range(len(owners)):
        yield Send(SWITCH, piece)
    for piece, owner in enumerate(owners):
        yield Receive(server(owner), piece, reduce=False)


def _server(number: int, workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if owner == number:
            yield Receive(SWITCH, piece, reduce=False)
            for node in workers:
                yield Send(node, piece)


def _switch(workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        yield Aggregate(workers, piece)
        yield Send(server(owner), piece)


SPEC = MechanismSpec(
    NAME,
    "the switch sums on the way to a server; the server sends the sum back to each worker",
    schedule,
    fabric_use=FabricUse.TO_SERVER,
)
