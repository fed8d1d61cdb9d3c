"""Schedules of all collectives, executed on numbers of every size, against numpy; and what their links carry."""

from __future__ import annotations

from collections import defaultdict, deque
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.contract import Collective, find_collective
from hostlib.schedules.schedule import (
    Aggregate,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    bounds_of,
    link_elements,
    worker,
)

Values = NDArray[np.int64]
DONE = [
    *((name, each) for name, m in registered().items() if m.build is not None for each in m.collectives),
    *((name, each) for name in ("ps:servers=2:assign=even", "tree:pieces=5") for each in find(name).collectives),
]
UNDEFINED = -(10**9)  # what ranks have in their memory: any sum with it is wrong


def executed(schedule: Schedule, begin: list[Values]) -> list[Values]:
    """Each worker's tensor in the end."""
    bounds = bounds_of(schedule, len(begin[0]))
    memory = {node: np.full(len(begin[0]), UNDEFINED) for node in schedule.nodes}
    memory |= {worker(rank): values.copy() for rank, values in enumerate(begin)}
    wires: dict[tuple[str, str, int], deque[Values]] = defaultdict(deque)
    todo = {node: deque(operations) for node, operations in schedule.nodes.items()}

    def do(node: str, operation: Operation) -> bool:
        mine = memory[node][slice(*bounds[operation.piece])]
        match operation:
            case Send(peer, piece):
                wires[node, peer, piece].append(mine.copy())
            case Multicast(peers, piece):
                for peer in peers:
                    wires[node, peer, piece].append(mine.copy())
            case Receive(peer, piece, reduce):
                if not wires[peer, node, piece]:
                    return False
                got = wires[peer, node, piece].popleft()
                mine[:] = mine + got if reduce else got
            case Aggregate(peers, piece):
                if not all(wires[peer, node, piece] for peer in peers):
                    return False
                mine[:] = sum(wires[peer, node, piece].popleft() for peer in peers)
        return True

    while any(todo.values()):
        moved = False
        for node, operations in todo.items():
            while operations and do(node, operations[0]):
                operations.popleft()
                moved = True
        assert moved, "a deadlock"
    return [memory[worker(rank)] for rank in range(schedule.world_size)]


def shards(values: Values, count: int) -> list[Values]:
    return list(np.array_split(values, count))


def kept(values: Values, count: int, shard: int) -> Values:
    """One shard; undefined elsewhere."""
    return np.concatenate(
        [each if i == shard else each * 0 + UNDEFINED for i, each in enumerate(shards(values, count))]
    )


def require_done(schedule: Schedule, elements: int, seed: int) -> None:
    """Compare with what numpy makes of random tensors."""
    n, root = schedule.world_size, schedule.root
    drawn = list(np.random.default_rng(seed).integers(-(10**6), 10**6, (n, elements)))
    total = np.sum(drawn, axis=0)
    match schedule.collective:
        case Collective.ALL_REDUCE:
            assert all((mine == total).all() for mine in executed(schedule, drawn))
        case Collective.REDUCE:
            assert (executed(schedule, drawn)[root] == total).all()
        case Collective.REDUCE_SCATTER:
            for rank, mine in enumerate(executed(schedule, drawn)):
                assert (shards(mine, n)[rank] == shards(total, n)[rank]).all()
        case Collective.ALL_GATHER:
            whole = drawn[0]
            ends = executed(schedule, [kept(whole, n, rank) for rank in range(n)])
            assert all((mine == whole).all() for mine in ends)
        case Collective.BROADCAST:
            ends = executed(
                schedule, [each if rank == root else each * 0 + UNDEFINED for rank, each in enumerate(drawn)]
            )
            assert all((mine == drawn[root]).all() for mine in ends)
        case Collective.ALL_TO_ALL:
            all_rows = np.concatenate([np.resize(each, elements - elements % n) for each in drawn])
            ends = executed(schedule, [kept(all_rows, n, rank) for rank in range(n)])
            for rank, mine in enumerate(ends):
                blocks, wanted = shards(mine, n * n), shards(all_rows, n * n)
                assert all((blocks[s * n + rank] == wanted[s * n + rank]).all() for s in range(n))


@given(
    done=st.sampled_from(DONE),
    world_size=st.integers(1, 9),
    elements=st.integers(1, 300),
    turn=st.integers(0, 9),
    data=st.data(),
)
def test_every_collective_is_numpys(
    done: tuple[str, Collective], world_size: int, elements: int, turn: int, data: st.DataObject
) -> None:
    name, collective = done
    root = data.draw(st.integers(0, world_size - 1)) if collective.has_root else 0
    schedule = find(name).of(collective).schedule(world_size, size=4 * elements, turn=turn, root=root)
    require_done(schedule, elements, seed=data.draw(st.integers(0, 2**32)))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_what_links_carry(n: int) -> None:
    """In whole tensors, as (sent, received) of the worker that has most."""
    part = (n - 1) / n
    wanted = {
        ("ring", "reduce_scatter"): (part, part),
        ("ring", "all_gather"): (part, part),
        ("ring", "broadcast"): (1, 1),
        ("ring", "reduce"): (1, 1),
        ("ring", "all_to_all"): ((n - 1) / 2, (n - 1) / 2),
        ("halving-doubling", "reduce_scatter"): (part, part),
        ("halving-doubling", "all_gather"): (part, part),
        ("butterfly", "all_to_all"): (part, part),
        ("butterfly", "broadcast"): (ceil(log2(n)), 1),
        ("butterfly", "reduce"): (1, ceil(log2(n))),
        ("ps", "reduce_scatter"): (1, 1 / n),
        ("ps", "all_gather"): (1 / n, part),
        ("ps", "reduce"): (1, 1),
        ("mcast", "all_gather"): (1 / n, part),
        ("mcast", "broadcast"): (1, 1),
        ("inagg+mcast", "reduce_scatter"): (part, 1 / n),
        ("inagg+mcast", "reduce"): (1, 1),
    }
    elements = 4 * n * n * 10
    for (name, collective), most in wanted.items():
        made = find_collective(collective)
        schedule = find(name).of(made).schedule(n)
        carried = link_elements(schedule, made.tensor_bytes(elements, n))
        workers = [carried[worker(rank)] for rank in range(n)]
        found = tuple(max(each[way] for each in workers) / elements for way in (0, 1))
        assert found == pytest.approx(most), (name, collective)


def test_halves_make_the_all_reduce() -> None:
    """A ring's, halving-doubling's and ring+mcast's all-reduce are their reduce-scatter, then their all-gather."""
    for name in ("ring", "halving-doubling", "ring+mcast"):
        for n in (3, 4):
            first, second, both = (
                find(name).of(each).schedule(n)
                for each in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.ALL_REDUCE)
            )
            for rank in range(n):
                node = worker(rank)
                assert first.nodes[node] + second.nodes[node] == both.nodes[node]
