"""The checker passes what is an all-reduce, and says of anything else where it goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostlib.checker import check
from hostlib.errors import ScheduleError
from hostlib.registry import registered
from hostlib.schedule import SWITCH, Aggregate, Multicast, Operation, Receive, Schedule, Send

OURS = sorted(name for name, mechanism in registered().items() if mechanism.build is not None)


def two(first: tuple[Operation, ...], second: tuple[Operation, ...]) -> Schedule:
    """A schedule of two workers and one piece."""
    return Schedule("test", 2, 1, {"worker0": first, "worker1": second})


def ring(world_size: int = 3) -> Schedule:
    return registered()["ring"].schedule(world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("name", OURS)
def test_every_registered_mechanism_is_an_all_reduce(name: str, world_size: int) -> None:
    check(registered()[name].schedule(world_size))


def test_exchanging_is_an_all_reduce_of_two() -> None:
    check(two((Send("worker1", 0), Receive("worker1", 0, True)), (Send("worker0", 0), Receive("worker0", 0, True))))


def test_a_deadlock_names_node_and_piece() -> None:
    waiting = two((Receive("worker1", 0, True), Send("worker1", 0)), (Receive("worker0", 0, True), Send("worker0", 0)))
    with pytest.raises(ScheduleError, match="deadlock: worker0 waits for ever to receive piece 0 from worker1"):
        check(waiting)


def test_a_switch_that_waits_for_a_silent_worker_is_a_deadlock() -> None:
    workers = ("worker0", "worker1")
    up, down = Send(SWITCH, 0), Receive(SWITCH, 0, False)
    nodes = {"worker0": (up, down), "worker1": (down,), SWITCH: (Aggregate(workers, 0), Multicast(workers, 0))}
    with pytest.raises(ScheduleError, match="deadlock: worker0 waits for ever to receive piece 0 from switch"):
        check(Schedule("test", 2, 1, nodes))


@pytest.mark.parametrize("dropped", range(4))
def test_a_dropped_receive_is_found(dropped: int) -> None:
    good = ring()
    receives = [i for i, op in enumerate(good.nodes["worker1"]) if isinstance(op, Receive)]
    fewer = tuple(op for i, op in enumerate(good.nodes["worker1"]) if i != receives[dropped])
    with pytest.raises(ScheduleError, match=r"^ring: .*piece \d"):
        check(replace(good, nodes={**good.nodes, "worker1": fewer}))


def test_copying_where_one_should_add_loses_a_contribution() -> None:
    with pytest.raises(ScheduleError, match="worker0 ends with the contribution of rank 0 missing in piece 0"):
        check(
            two((Send("worker1", 0), Receive("worker1", 0, False)), (Send("worker0", 0), Receive("worker0", 0, True)))
        )


def test_adding_twice_is_counted() -> None:
    twice = (Send("worker1", 0), Receive("worker1", 0, True), Receive("worker1", 0, True))
    other = (Send("worker0", 0), Send("worker0", 0), Receive("worker0", 0, True))
    with pytest.raises(ScheduleError, match="worker0 ends with the contribution of rank 1 added 2 times in piece 0"):
        check(two(twice, other))


def test_a_message_that_nobody_takes_is_found() -> None:
    extra = (Send("worker1", 0), Receive("worker1", 0, True), Send("worker1", 0))
    with pytest.raises(ScheduleError, match="piece 0 from worker0 is never received by worker1"):
        check(two(extra, (Send("worker0", 0), Receive("worker0", 0, True))))


def test_a_worker_without_a_list_is_named() -> None:
    with pytest.raises(ScheduleError, match="worker1 has no operations"):
        check(Schedule("test", 2, 1, {"worker0": ()}))
