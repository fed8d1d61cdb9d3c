"""The checker passes what is an all-reduce, and says of anything else where it goes wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.checker import check
from hostlib.schedules.schedule import (
    SWITCH,
    Aggregate,
    Multicast,
    Operation,
    Receive,
    Schedule,
    Send,
    Symmetry,
    image,
    worker,
)

OURS = sorted(name for name, mechanism in registered().items() if mechanism.build is not None)
WITH_OPTIONS = (
    "inagg:servers=3:assign=even",
    "inagg+mcast:via_server",
    "inagg+mcast:via_server:servers=2:assign=pairs",
    "mcast:servers=2:assign=pairs",
    "ps:colocated",
    "ps:servers=3",
    "ps:servers=4:assign=even",
    "ps:servers=3:assign=pairs",
    "ring:split=no",
    "tree:pieces=1",
    "tree:pieces=5",
)


def two(first: tuple[Operation, ...], second: tuple[Operation, ...]) -> Schedule:
    """A schedule of two workers and one piece."""
    return Schedule("test", 2, 1, {"worker0": first, "worker1": second})


def ring(world_size: int = 3) -> Schedule:
    return registered()["ring"].schedule(world_size)


@pytest.mark.parametrize("name", [*OURS, *WITH_OPTIONS])
def test_every_mechanism_is_an_all_reduce(name: str) -> None:
    """Of 5 MB: three pairs."""
    for world_size in range(1, 34):
        for turn in (0, 3):
            check(find(name).schedule(world_size, size=5_000_000, turn=turn))


@pytest.mark.parametrize("name", ["ps:assign=even:colocated:servers={}", "inagg+mcast:racks={}"])
def test_every_number_of_servers_or_racks_makes_an_all_reduce(name: str) -> None:
    for world_size in range(2, 18):
        for number in range(1, world_size + 1):
            check(find(name.format(number)).schedule(world_size))


@pytest.mark.parametrize("name", ["ring", "butterfly", "halving-doubling", "ps:assign=even:colocated:servers={}"])
def test_a_symmetric_schedule_is_worker_0s_for_all(name: str) -> None:
    symmetric = 0
    for world_size in range(1, 34):
        schedule = find(name.format(world_size)).schedule(world_size)
        if schedule.symmetry is Symmetry.NONE:
            continue
        symmetric += 1
        first = schedule.nodes["worker0"]
        assert set(schedule.nodes) == {worker(rank) for rank in range(world_size)}
        for rank in range(world_size):
            assert schedule.nodes[worker(rank)] == tuple(image(schedule, operation, rank) for operation in first)
    assert symmetric == (6 if name == "butterfly" else 33)


@given(name=st.sampled_from([*OURS, *WITH_OPTIONS]), world_size=st.integers(2, 9), data=st.data())
def test_a_planted_error_is_found_and_placed(name: str, world_size: int, data: st.DataObject) -> None:
    """An operation lost or done twice, a sum made a copy or a copy a sum: none is an all-reduce any more."""
    good = find(name).schedule(world_size, size=5_000_000)
    node = data.draw(st.sampled_from([node for node in good.nodes if good.nodes[node]]))
    operations = list(good.nodes[node])
    at = data.draw(st.integers(0, len(operations) - 1))
    operation = operations[at]
    faults = ["lost", "twice"] if not isinstance(operation, Receive) else ["lost", "twice", "other kind"]
    match data.draw(st.sampled_from(faults)):
        case "lost":
            del operations[at]
        case "twice":
            operations.insert(at, operation)
        case "other kind":
            operations[at] = replace(operation, reduce=not operation.reduce)
            # A server or switch has nothing of its own: what comes first may as well be added.
            known = node in worker_nodes(good) or any(each.piece == operation.piece for each in operations[:at])
            assume(known)
    with pytest.raises(ScheduleError) as raised:
        check(replace(good, nodes={**good.nodes, node: tuple(operations)}))
    assert str(raised.value).startswith(f"{name}: ")
    assert re.search(r"(worker|server)\d|switch", str(raised.value))
    assert re.search(r"piece \d", str(raised.value))


def worker_nodes(schedule: Schedule) -> set[str]:
    return {worker(rank) for rank in range(schedule.world_size)}


def test_exchanging_is_an_all_reduce_of_two() -> None:
    check(two((Send("worker1", 0), Receive("worker1", 0, True)), (Send("worker0", 0), Receive("worker0", 0, True))))


def test_a_deadlock_names_node_and_piece() -> None:
    waiting = two((Receive("worker1", 0, True), Send("worker1", 0)), (Receive("worker0", 0, True), Send("worker0", 0)))
    with pytest.raises(ScheduleError, match="deadlock: worker0 waits forever to receive piece 0 from worker1"):
        check(waiting)


def test_two_that_wait_for_a_message_to_be_taken_before_they_take_another_are_a_deadlock() -> None:
    """worker0 may not add to piece 0 before worker1 took it, and worker1 waits for piece 1 first."""
    first = (Send("worker1", 0), Receive("worker1", 0, True), Send("worker1", 1), Receive("worker1", 1, True))
    second = (Send("worker0", 0), Receive("worker0", 1, True), Send("worker0", 1), Receive("worker0", 0, True))
    with pytest.raises(ScheduleError, match="deadlock: worker0 waits forever to receive piece 0 from worker1, add"):
        check(Schedule("test", 2, 2, {"worker0": first, "worker1": second}))


def test_a_switch_that_waits_for_a_silent_worker_is_a_deadlock() -> None:
    workers = ("worker0", "worker1")
    up, down = Send(SWITCH, 0), Receive(SWITCH, 0, False)
    nodes = {"worker0": (up, down), "worker1": (down,), SWITCH: (Aggregate(workers, 0), Multicast(workers, 0))}
    with pytest.raises(ScheduleError, match="deadlock: worker0 waits forever to receive piece 0 from switch"):
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
