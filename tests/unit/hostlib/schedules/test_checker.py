"""The checker passes what does its collective, and says of anything else where it goes wrong."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hostlib.errors import ScheduleError
from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.checker import check
from hostlib.schedules.contract import Collective
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


DONE = [(name, collective) for name in (*OURS, *WITH_OPTIONS) for collective in find(name).collectives]


@pytest.mark.parametrize(("name", "collective"), DONE, ids=str)
def test_every_mechanism_does_its_collectives(name: str, collective: Collective) -> None:
    """Of 5 MB: three pairs."""
    for world_size in range(1, 18 if collective is Collective.ALL_TO_ALL else 34):
        for turn in (0, 3):
            check(find(name).of(collective).schedule(world_size, size=5_000_000, turn=turn))


@pytest.mark.parametrize(("name", "collective"), [each for each in DONE if each[1].has_root], ids=str)
def test_every_rank_may_be_the_root(name: str, collective: Collective) -> None:
    for world_size in range(1, 10):
        for root in range(world_size):
            schedule = find(name).of(collective).schedule(world_size, size=5_000_000, root=root)
            assert schedule.root == root
            check(schedule)
            if world_size > 1:
                with pytest.raises(ScheduleError):
                    check(replace(schedule, root=(root + 1) % world_size))


@pytest.mark.parametrize(("name", "collective"), DONE, ids=str)
def test_what_does_one_collective_does_not_do_another(name: str, collective: Collective) -> None:
    """Unless it gives all ranks more than the other promises, which its pieces may then allow."""
    also = {
        Collective.ALL_REDUCE: {Collective.REDUCE, Collective.REDUCE_SCATTER},
        Collective.ALL_GATHER: {Collective.ALL_TO_ALL},
    }.get(collective, set())
    schedule = find(name).of(collective).schedule(4, size=5_000_000)
    for other in set(Collective) - {collective} - also:
        with pytest.raises(ScheduleError, match=rf"^{re.escape(name)}: "):
            check(replace(schedule, collective=other))


def test_what_a_mechanism_does_not_do_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"^tree does no all_to_all; legal are all_reduce, reduce, broadcast$"):
        find("tree").of(Collective.ALL_TO_ALL)
    with pytest.raises(ScheduleError, match=r"^ring:split=no does no all_gather; legal are all_reduce$"):
        find("ring:split=no").of(Collective.ALL_GATHER)


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


@given(done=st.sampled_from(DONE), world_size=st.integers(2, 9), data=st.data())
def test_a_planted_error_is_found_and_placed(
    done: tuple[str, Collective], world_size: int, data: st.DataObject
) -> None:
    """An operation lost or done twice, a sum made a copy or a copy a sum: none does its collective any more."""
    name, collective = done
    good = find(name).of(collective).schedule(world_size, size=5_000_000)
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


def test_what_a_rank_has_not_been_given_is_undefined() -> None:
    """worker1 adds the broadcast tensor to whatever is in its memory."""
    added = two((Send("worker1", 0),), (Receive("worker0", 0, True),))
    with pytest.raises(ScheduleError, match="worker1 ends with what was in its memory before added to contributions"):
        check(replace(added, collective=Collective.BROADCAST))
    check(replace(two((Send("worker1", 0),), (Receive("worker0", 0, False),)), collective=Collective.BROADCAST))


def test_a_shard_of_another_rank_is_found() -> None:
    swapped = Schedule(
        "test",
        2,
        2,
        {
            "worker0": (Send("worker1", 0), Receive("worker1", 1, True)),
            "worker1": (Send("worker0", 1), Receive("worker0", 0, True)),
        },
    )
    with pytest.raises(ScheduleError, match="worker0 ends with the contribution of rank 1 missing in piece 0"):
        check(replace(swapped, collective=Collective.REDUCE_SCATTER))


def test_a_sum_where_one_contribution_is_wanted_is_found() -> None:
    both = two((Receive("worker1", 0, True),), (Send("worker0", 0),))
    check(replace(both, collective=Collective.REDUCE))
    exchanged = two(
        (Send("worker1", 0), Receive("worker1", 0, True)), (Send("worker0", 0), Receive("worker0", 0, False))
    )
    with pytest.raises(ScheduleError, match="worker0 ends with what was in its memory before added"):
        check(replace(exchanged, collective=Collective.BROADCAST))


@pytest.mark.parametrize(("collective", "of"), [(Collective.ALL_GATHER, 3), (Collective.ALL_TO_ALL, 9)])
def test_pieces_that_make_up_no_equal_shards_are_refused(collective: Collective, of: int) -> None:
    nodes: dict[str, tuple[Operation, ...]] = {worker(rank): () for rank in range(3)}
    with pytest.raises(ScheduleError, match=f"^test: pieces of {collective} must be a multiple of {of}, not 4$"):
        check(Schedule("test", 3, 4, nodes, collective=collective))


def test_a_worker_without_a_list_is_named() -> None:
    with pytest.raises(ScheduleError, match="worker1 has no operations"):
        check(Schedule("test", 2, 1, {"worker0": ()}))
