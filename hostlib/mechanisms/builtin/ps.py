"""ps: parameter servers sum every worker's tensor and send the sum back to each.

Any collective but the all-to-all: workers send what they give to the servers, which sum it and send it to those who
take it.

Source: "How to Train your DNN", sections 3.3.1 and 9.1; "Poseidon", section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective, block_of, ends_of
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, server, worker
from hostlib.schedules.sharding import Assign, placement, placement_of_blocks, with_servers

NAME = "ps"
MOST_SERVERS = 4096

Ranks = range | tuple[int, ...]
Ends = Sequence[tuple[Ranks, Ranks]]  # by piece: the ranks that send it to a server, and those that it sends to


def schedule(
    world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole", colocated: bool = False
) -> Schedule:
    """Servers have hosts of their own, or share the first workers' (`colocated`)."""
    if not colocated:
        return _served(Collective.ALL_REDUCE, world_size, size, turn, servers, assign)
    _require_servers(servers)
    if servers > world_size:
        raise ScheduleError(f"{NAME}: {servers} servers cannot share the hosts of {world_size} workers")
    owners = placement(servers, assign, size, turn)
    everywhere = owners == tuple(range(world_size))
    makers = {
        node: partial(_sharing, rank, world_size, owners) for rank, node in enumerate(map(worker, range(world_size)))
    }
    symmetry = Symmetry.ROTATION if everywhere else Symmetry.NONE
    return Schedule(NAME, world_size, len(owners), Lists(makers), symmetry)


def reduce_scatter(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Each worker gets back only the sum of its own shard."""
    return _served(Collective.REDUCE_SCATTER, world_size, size, turn, servers, assign)


def all_gather(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Servers send each worker's shard to all others."""
    return _served(Collective.ALL_GATHER, world_size, size, turn, servers, assign)


def broadcast(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Servers send worker 0's tensor to all others."""
    return _served(Collective.BROADCAST, world_size, size, turn, servers, assign)


def reduce(world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole") -> Schedule:
    """Worker 0 alone gets the sum back."""
    return _served(Collective.REDUCE, world_size, size, turn, servers, assign)


def _require_servers(servers: int) -> None:
    if servers > MOST_SERVERS:
        raise ScheduleError(f"{NAME}: at most {MOST_SERVERS} servers, not {servers}")


def _served(collective: Collective, n: int, size: int, turn: int, servers: int, assign: Assign) -> Schedule:
    """Through servers with hosts of their own; shards are assigned to them as tensors are."""
    _require_servers(servers)
    blocks = collective.blocks(n)
    owners = placement_of_blocks(blocks, servers, assign, size, turn)
    of_blocks = [_through_a_server(collective, n, block) for block in range(blocks)]
    ends = [of_blocks[block_of(collective, n, len(owners), piece)] for piece in range(len(owners))]
    return with_servers(NAME, n, servers, owners, partial(_worker, ends), partial(_server, ends))


def _through_a_server(collective: Collective, n: int, block: int) -> tuple[Ranks, Ranks]:
    """The ranks that send a block to a server, and those that it sends to."""
    givers, takers = ends_of(collective, n, block)
    if collective.sums:
        return givers, takers
    return givers, tuple(rank for rank in takers if rank not in givers)  # who gives it has it


def _worker(ends: Ends, rank: int, owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if rank in ends[piece][0]:
            yield Send(server(owner), piece)
    for piece, owner in enumerate(owners):
        if rank in ends[piece][1]:
            yield Receive(server(owner), piece, reduce=False)


def _server(ends: Ends, number: int, workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if owner == number:
            givers, takers = ends[piece]
            for rank in givers:
                yield Receive(workers[rank], piece, reduce=rank != givers[0])
            for rank in takers:
                yield Send(workers[rank], piece)


def _sharing(rank: int, n: int, owners: tuple[int, ...]) -> Iterator[Operation]:
    """Serve the others in order of their distance, so that the workers do not all send to one host at once."""
    order = sorted(range(len(owners)), key=lambda piece: ((owners[piece] - rank) % n, piece))
    mine = [piece for piece in order if owners[piece] == rank]
    others = [piece for piece in order if owners[piece] != rank]
    for piece in others:
        yield Send(worker(owners[piece]), piece)
    for piece in mine:
        for step in range(1, n):
            yield Receive(worker((rank - step) % n), piece, reduce=True)
        for step in range(1, n):
            yield Send(worker((rank - step) % n), piece)
    for piece in others:
        yield Receive(worker(owners[piece]), piece, reduce=False)


SPEC = MechanismSpec(
    NAME,
    "parameter servers sum and send the sum back; a server's link carries its share n times each way",
    schedule,
    collectives={
        Collective.REDUCE_SCATTER: reduce_scatter,
        Collective.ALL_GATHER: all_gather,
        Collective.BROADCAST: broadcast,
        Collective.REDUCE: reduce,
    },
)
