"""Assign the pieces of a tensor to parameter servers.

Source: "How to Train your DNN", section 9.1 (whole variables and even parts); "Poseidon", section 4.1 (pairs of 2 MB).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Literal

from hostlib.errors import ScheduleError
from hostlib.schedules.schedule import SWITCH, Lists, Operation, Schedule, server, worker

Assign = Literal["whole", "even", "pairs"]
PAIR_BYTES = 2_000_000


def placement(servers: int, assign: Assign, size: int, turn: int) -> tuple[int, ...]:
    """Return the server of each piece.

    Args:
        assign: `whole`: each tensor on one server, round robin, as TensorFlow assigns variables; `even`: a part of each
            tensor on every server; `pairs`: parts of at most 2 MB, round robin, as Poseidon's key-value store.
        size: of the tensor in bytes.
        turn: the tensor's number.

    Raises:
        ScheduleError: there is no server.
    """
    if servers < 1:
        raise ScheduleError(f"servers must be at least 1, not {servers}")
    if assign == "whole":
        return (turn % servers,)
    if assign == "even":
        return tuple(range(servers))
    return tuple((turn + piece) % servers for piece in range(max(1, -(-size // PAIR_BYTES))))


def placement_of_blocks(blocks: int, servers: int, assign: Assign, size: int, turn: int) -> tuple[int, ...]:
    """Return the server of each piece if the tensor's blocks are placed like tensors of their own; see placement."""
    each = (placement(servers, assign, -(-size // blocks), turn + block) for block in range(blocks))
    return tuple(chain.from_iterable(each))


def with_servers(
    mechanism: str,
    world_size: int,
    servers: int,
    owners: tuple[int, ...],
    of_worker: Callable[[int, tuple[int, ...]], Iterable[Operation]],
    of_server: Callable[[int, tuple[str, ...], tuple[int, ...]], Iterable[Operation]],
    of_switch: Callable[[tuple[str, ...], tuple[int, ...]], Iterable[Operation]] | None = None,
) -> Schedule:
    """Build a schedule from workers, servers, and the switch if it takes part.

    Args:
        owners: see placement; passed to the functions that make operations.
        of_worker: also takes the worker's rank.
        of_server: also takes the server's number and all workers' names.
        of_switch: also takes all workers' names.
    """
    workers = tuple(worker(rank) for rank in range(world_size))
    makers: dict[str, Callable[[], Iterable[Operation]]] = {
        node: partial(of_worker, rank, owners) for rank, node in enumerate(workers)
    }
    makers |= {server(number): partial(of_server, number, workers, owners) for number in range(servers)}
    if of_switch is not None:
        makers[SWITCH] = partial(of_switch, workers, owners)
    return Schedule(mechanism, world_size, len(owners), Lists(makers))
