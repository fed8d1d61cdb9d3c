"""inagg+mcast: the switch sums every rank's tensor and multicasts the result.

A reduce-scatter or reduce loads the way up: the switch sums what the others send of a shard, and its owner adds its own
values. An all-gather or broadcast loads the way down, as mcast's do.

Source: "How to Train your DNN", sections 3.4.1 and 3.4.2, combined, with a server or without; docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from hostlib.errors import ScheduleError
from hostlib.mechanisms.builtin.mcast import multicast
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective
from hostlib.schedules.hierarchy import spread
from hostlib.schedules.schedule import (
    SWITCH,
    Aggregate,
    FabricUse,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    by_workers,
    server,
    worker,
)
from hostlib.schedules.sharding import Assign, placement, with_servers
from hostlib.topology.builtin.leaf_spine import leaf_spine

NAME = "inagg+mcast"


def schedule(
    world_size: int,
    size: int,
    turn: int,
    *,
    via_server: bool = False,
    servers: int = 1,
    assign: Assign = "whole",
    racks: int = 1,
) -> Schedule:
    """Workers send the whole tensor up and receive the whole sum.

    Args:
        via_server: a server applies the switch's sum before it is multicast.
        servers, assign: options of via_server.
        racks: number of leaf switches, all below one spine; sums are taken at both levels.
    """
    if via_server:
        if racks != 1:
            raise ScheduleError(f"{NAME}: via_server works with one switch, not with {racks} racks")
        owners = placement(servers, assign, size, turn)
        return with_servers(NAME, world_size, servers, owners, _worker_of_servers, _server, _switch_of_servers)
    flat = _flat(world_size)
    if racks == 1:
        return flat
    if not 1 <= racks <= world_size:
        raise ScheduleError(f"{NAME}: racks must be in 1..{world_size}, the world size, not {racks}")
    network = leaf_spine(world_size, racks)
    return spread(flat, network.tree, {node: network.switch_of(node) for node in map(worker, range(world_size))})


def reduce_scatter(world_size: int) -> Schedule:
    """Workers send all but their own shards up, (n-1)/n of the tensor, and receive one shard."""
    return _to_owners(world_size, world_size, FabricUse.TO_OWNERS)


def reduce(world_size: int) -> Schedule:
    """All but worker 0 send the tensor up, and worker 0 receives their sum. On hosts every worker owns a shard, so this
    is only simulated.
    """
    return _to_owners(world_size, 1, None)


def all_gather(world_size: int) -> Schedule:
    """As mcast's."""
    return multicast(NAME, world_size, world_size)


def broadcast(world_size: int) -> Schedule:
    """As mcast's."""
    return multicast(NAME, world_size, 1)


def _to_owners(n: int, pieces: int, use: FabricUse | None) -> Schedule:
    """Worker p owns piece p."""
    return by_workers(
        NAME,
        n,
        pieces,
        partial(_owner, pieces),
        switch=partial(_for_owners, n, pieces),
        fabric_use=use,
    )


def _owner(pieces: int, rank: int, n: int) -> Iterator[Operation]:
    for piece in range(pieces):
        if piece != rank:
            yield Send(SWITCH, piece)
    if rank < pieces and n > 1:
        yield Receive(SWITCH, rank, reduce=True)


def _for_owners(n: int, pieces: int) -> Iterator[Operation]:
    for piece in range(pieces):
        yield Aggregate(tuple(worker(rank) for rank in range(n) if rank != piece), piece)
        yield Send(worker(piece), piece)


@lru_cache(maxsize=8)  # all tensors have the same
def _flat(world_size: int) -> Schedule:
    """Of one switch."""
    workers = tuple(worker(rank) for rank in range(world_size))
    return Schedule(
        NAME,
        world_size,
        1,
        {**{node: tuple(_worker()) for node in workers}, SWITCH: tuple(_top(workers))},
    )


def _worker() -> Iterator[Operation]:
    yield Send(SWITCH, 0)
    yield Receive(SWITCH, 0, reduce=False)


def _top(below: tuple[str, ...]) -> Iterator[Operation]:
    yield Aggregate(below, 0)
    yield Multicast(below, 0)


def _worker_of_servers(_rank: int, owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece in range(len(owners)):
        yield Send(SWITCH, piece)
    for piece in range(len(owners)):
        yield Receive(SWITCH, piece, reduce=False)


def _server(number: int, _workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if owner == number:
            yield Receive(SWITCH, piece, reduce=False)
            yield Send(SWITCH, piece)


def _switch_of_servers(workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        yield Aggregate(workers, piece)
        yield Send(server(owner), piece)
    for piece, owner in enumerate(owners):
        yield Receive(server(owner), piece, reduce=False)
        yield Multicast(workers, piece)


def _fabric_use(options: Mapping[str, Any]) -> FabricUse:
    return FabricUse.VIA_SERVER if options["via_server"] else FabricUse.SUM


SPEC = MechanismSpec(
    NAME,
    "the switch sums and multicasts the result; every link carries the tensor once each way",
    schedule,
    fabric_use=_fabric_use,
    collectives={
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: reduce,
    },
)
