"""mcast: a parameter server sums; the switch multicasts the sum. What is only gathered, it multicasts from each worker.

Source: "How to Train your DNN", section 3.4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import (
    SWITCH,
    FabricUse,
    Multicast,
    Operation,
    Phase,
    Receive,
    Schedule,
    Send,
    by_workers,
    server,
    worker,
)
from hostlib.schedules.sharding import Assign, placement, with_servers

NAME = "mcast"


def schedule(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Up n times to the server, down once through the switch's multicast."""
    owners = placement(servers, assign, size, turn)
    return with_servers(NAME, world_size, servers, owners, _worker, _server, _switch)


def all_gather(world_size: int) -> Schedule:
    """Each worker's shard goes up once, and down to all others."""
    return multicast(NAME, world_size, world_size)


def broadcast(world_size: int) -> Schedule:
    """Worker 0's tensor goes up once, and down to all others."""
    return multicast(NAME, world_size, 1)


def multicast(mechanism: str, world_size: int, pieces: int, *before: Phase) -> Schedule:
    """Worker p has piece p, or has completed it in the phases before; the switch multicasts it to all others."""
    return by_workers(
        mechanism,
        world_size,
        pieces,
        *before,
        partial(_source, pieces),
        switch=partial(_relay, world_size, pieces),
        fabric_use=FabricUse.MULTICAST,
    )


def _source(pieces: int, rank: int, n: int) -> Iterator[Operation]:
    if rank < pieces and n > 1:
        yield Send(SWITCH, rank)
    for piece in range(pieces):
        if piece != rank:
            yield Receive(SWITCH, piece, reduce=False)


def _relay(n: int, pieces: int) -> Iterator[Operation]:
    for piece in range(pieces):
        yield Receive(worker(piece), piece, reduce=False)
        yield Multicast(tuple(worker(rank) for rank in range(n) if rank != piece), piece)


def _worker(_rank: int, owners: tuple[int, ...]) -> Iterator[Operation]:
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
    collectives={Collective.ALL_GATHER: all_gather, Collective.BROADCAST: broadcast},
)
