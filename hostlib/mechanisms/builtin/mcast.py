"""mcast: a parameter server sums; the switch multicasts the sum.

Source: "How to Train your DNN", section 3.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import (
    SWITCH,
    FabricUse,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    server,
)
from hostlib.schedules.sharding import Assign, placement, with_servers

NAME = "mcast"


def schedule(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Up n times to the server, down once through the switch's multicast."""
    owners = placement(servers, assign, size, turn)
    return with_servers(NAME, world_size, servers, owners, _worker, _server, _switch)


def _worker(owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        yield Send(server(owner), piece)
    for piece in range(len(owners)):
        yield Receive(SWITCH, piece, reduce=False)


def _server(number: int, workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if owner == number:
            for node in workers:
                yield Receive(node, piece, reduce=node != workers[0])
            yield Send(SWITCH, piece)


def _switch(workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        yield Receive(server(owner), piece, reduce=False)
        yield Multicast(workers, piece)


SPEC = MechanismSpec(
    NAME,
    "a server sums; the switch multicasts its sum",
    schedule,
    fabric_use=FabricUse.MULTICAST,
)
