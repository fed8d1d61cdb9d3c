"""mcast: a parameter server sums; the switch multicasts the sum.

Source: "How to Train your DNN", section 3.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import (
    SWITCH,
    FabricUse,
    Lists,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    server,
    worker,
)
from hostlib.schedules.sharding import Assign, placement

NAME = "mcast"


def schedule(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Up n times to the server, down once through the switch's multicast."""
    owners = placement(servers, assign, size, turn)
    workers = tuple(worker(rank) for rank in range(world_size))
    lists = {
        **{node: partial(_worker, owners) for node in workers},
        **{server(number): partial(_server, number, workers, owners) for number in range(servers)},
        SWITCH: partial(_switch, workers, owners),
    }
    return Schedule(NAME, world_size, len(owners), Lists(lists))


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
