"""ps: parameter servers sum every worker's tensor and send the sum back to each.

Source: "How to Train your DNN", sections 3.3.1 and 9.1; "Poseidon", section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Lists, Operation, Receive, Schedule, Send, Symmetry, server, worker
from hostlib.schedules.sharding import Assign, placement, with_servers

NAME = "ps"
MOST_SERVERS = 4096


def schedule(
    world_size: int, size: int, turn: int, *, servers: int = 1, assign: Assign = "whole", colocated: bool = False
) -> Schedule:
    """Servers have hosts of their own, or share the first workers' (`colocated`)."""
    if servers > MOST_SERVERS:
        raise ScheduleError(f"{NAME}: at most {MOST_SERVERS} servers, not {servers}")
    owners = placement(servers, assign, size, turn)
    if colocated:
        if servers > world_size:
            raise ScheduleError(f"{NAME}: {servers} servers cannot share the hosts of {world_size} workers")
        everywhere = owners == tuple(range(world_size))
        makers = {
            node: partial(_sharing, rank, world_size, owners)
            for rank, node in enumerate(map(worker, range(world_size)))
        }
        symmetry = Symmetry.ROTATION if everywhere else Symmetry.NONE
        return Schedule(NAME, world_size, len(owners), Lists(makers), symmetry)
    return with_servers(NAME, world_size, servers, owners, _worker, _server)


def _worker(owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        yield Send(server(owner), piece)
    for piece, owner in enumerate(owners):
        yield Receive(server(owner), piece, reduce=False)


def _server(number: int, workers: tuple[str, ...], owners: tuple[int, ...]) -> Iterator[Operation]:
    for piece, owner in enumerate(owners):
        if owner == number:
            for node in workers:
                yield Receive(node, piece, reduce=node != workers[0])
            for node in workers:
                yield Send(node, piece)


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
)
