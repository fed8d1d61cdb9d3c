"""Schedules and the registry: what mechanisms say they do, and the names they go by."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostlib.bench.allreduce import measurable
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.mechanisms.mechanism import find, find_fallback, registered
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import (
    SWITCH,
    Aggregate,
    FabricUse,
    Multicast,
    Receive,
    Send,
    describe,
    link_elements,
    piece_bounds,
)
from hostlib.strategies.strategy import choose


@given(elements=st.integers(0, 10_000), pieces=st.integers(1, 64))
def test_pieces_cover_the_tensor_evenly(elements: int, pieces: int) -> None:
    bounds = piece_bounds(elements, pieces)
    sizes = [end - start for start, end in bounds]
    assert [start for start, _ in bounds] == [sum(sizes[:i]) for i in range(pieces)]
    assert sum(sizes) == elements
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_registered_mechanisms() -> None:
    assert set(registered()) >= {"gloo", "inagg+mcast", "mpi", "nccl", "ring"}
    assert all(name == mechanism.name and mechanism.summary for name, mechanism in registered().items())
    fabric = {name for name, mechanism in registered().items() if mechanism.needs_fabric}
    assert "inagg+mcast" in fabric
    assert fabric.isdisjoint({"gloo", "mpi", "nccl", "ring"})


def test_ring_links_carry_2_n_minus_1_nths() -> None:
    carried = link_elements(find("ring").schedule(4), 1000)
    assert carried == {f"worker{rank}": (1500, 1500) for rank in range(4)}


@pytest.mark.parametrize("world_size", [1, 2, 4, 32])
def test_in_network_links_carry_the_tensor_once_each_way(world_size: int) -> None:
    schedule = find("inagg+mcast").schedule(world_size)
    workers = tuple(f"worker{rank}" for rank in range(world_size))
    assert link_elements(schedule, 1001) == {node: (1001, 1001) for node in workers}
    assert schedule.nodes[SWITCH] == (Aggregate(workers, 0), Multicast(workers, 0))


def test_a_schedule_cannot_be_changed() -> None:
    schedule = find("ring").schedule(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.pieces = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Send("worker1", 2), "send piece 2 to worker1"),
        (Receive("worker1", 2, reduce=True), "receive piece 2 from worker1, add"),
        (Receive("switch", 0, reduce=False), "receive piece 0 from switch, copy"),
        (Aggregate(("worker0", "worker1"), 0), "sum piece 0 of worker0, worker1"),
        (Multicast(("worker0", "worker1"), 0), "multicast piece 0 to worker0, worker1"),
    ],
)
def test_operations_in_words(operation: Send | Receive | Aggregate | Multicast, words: str) -> None:
    assert describe(operation) == words


def test_choosing_a_strategy_and_a_mechanism() -> None:
    assert (choose("ring").strategy.name, choose("ring").mechanism.name) == ("wfbp", "ring")
    assert choose("bsp/ring").strategy.name == "bsp"
    assert [str(choose(text)) for text in ("ring", "wfbp/ring", "bsp/ring")] == ["ring", "ring", "bsp/ring"]


@pytest.mark.parametrize(
    ("text", "kind", "legal"),
    [
        ("rong", "mechanism", "ring"),
        ("bsp/rong", "mechanism", "ring"),
        ("bps/ring", "strategy", "wfbp"),
        ("", "mechanism", "gloo"),
    ],
)
def test_an_unknown_name_is_answered_with_the_legal_ones(text: str, kind: str, legal: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown {kind} ") as raised:
        choose(text)
    assert legal in raised.value.legal
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["gloo", "mpi", "nccl"])
def test_a_yardstick_has_no_schedule(name: str) -> None:
    with pytest.raises(HostlibError, match=f"{name} is a library's own collective and has no schedule"):
        find(name).schedule(4)
    with pytest.raises(UnknownNameError, match=f"unknown fallback '{name}'; legal are"):
        find_fallback(name)


def test_ranks_run_a_yardstick_where_its_library_is() -> None:
    without, under_mpi = ({n for n, m in registered().items() if m.runs_with(by)} for by in ("gloo", "mpi"))
    assert under_mpi - without == {"mpi"}
    assert without == set(measurable()) >= {"gloo", "inagg+mcast", "ring"}
    assert "nccl" not in without
    for name, mechanism in registered().items():
        for transport, legal in (("gloo", without), ("mpi", under_mpi)):
            if name in legal:
                mechanism.require_ranks(transport)
            else:
                with pytest.raises(HostlibError, match=f"^{re.escape(name)} "):
                    mechanism.require_ranks(transport)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ps:sreves=2", "unknown option of ps 'sreves'; legal are assign, colocated, servers"),
        ("ps:servers=two", "ps:servers takes a number, not 'two'"),
        ("ps:assign=odd", "unknown ps:assign 'odd'; legal are even, pairs, whole"),
        ("ring:split=maybe", "unknown ring:split 'maybe'; legal are no, yes"),
        ("butterfly:split=no", "unknown option of butterfly 'split'; legal are same_host"),
        ("gloo:split=no", "unknown option of gloo 'split'; legal are none"),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_the_legal_ones(text: str, message: str) -> None:
    with pytest.raises(HostlibError) as raised:
        find(text)
    assert str(raised.value) == message


def test_options_out_of_range_name_the_mechanism() -> None:
    for text, message in (
        ("ps:servers=0", "servers must be at least 1, not 0"),
        ("ps:servers=5:colocated", "ps: 5 servers cannot share the hosts of 4 workers"),
        ("inagg+mcast:racks=5", r"inagg\+mcast: racks must be in 1..4, the world size, not 5"),
        ("inagg+mcast:racks=2:via_server", "via_server works with one switch, not with 2 racks"),
        ("tree:pieces=0", "tree: pieces must be at least 1, not 0"),
    ):
        with pytest.raises(HostlibError, match=message):
            find(text).schedule(4)


def test_tensors_are_dealt_out_in_turn() -> None:
    servers = [find("ps:servers=3").schedule(2, size=100, turn=turn).nodes["worker0"][0] for turn in range(4)]
    assert servers == [Send(f"server{number}", 0) for number in (0, 1, 2, 0)]
    pairs = find("ps:servers=3:assign=pairs").schedule(2, size=4_000_001, turn=1)
    assert [op.peer for op in pairs.nodes["worker0"] if isinstance(op, Send)] == ["server1", "server2", "server0"]


def test_where_a_mechanism_can_run() -> None:
    assert all(mechanism.runs_on_hosts for mechanism in registered().values())
    uses = {name: find(name).fabric_use for name in ("ring", "inagg+mcast", "inagg+mcast:via_server", "inagg")}
    assert list(uses.values()) == [None, FabricUse.SUM, FabricUse.VIA_SERVER, FabricUse.TO_SERVER]
    assert {find(name).fabric_use for name in ("mcast", "ring+mcast")} == {FabricUse.MULTICAST}
    assert find("inagg+mcast:racks=2").runs_on_hosts
    for name in ("inagg:servers=2", "inagg+mcast:via_server:servers=2", "mcast:servers=2"):
        with pytest.raises(HostlibError, match=rf"^{re.escape(name)} cannot run on hosts: .* one server or none"):
            find(name).require_hosts()
    with pytest.raises(HostlibError, match=r"^inagg\+mcast's reduce cannot run on hosts: .*; it can be simulated$"):
        find("inagg+mcast").of(Collective.REDUCE).require_hosts()


def test_whose_words_the_switch_multicasts() -> None:
    assert find("mcast").schedule(3).multicast_sources == {0: "server0"}
    assert find("ring+mcast").schedule(3).multicast_sources == {0: "worker0", 1: "worker1", 2: "worker2"}
    for name in ("ring", "inagg", "inagg+mcast", "inagg+mcast:via_server", "inagg+mcast:racks=2"):
        assert find(name).schedule(3).multicast_sources == {}
    assert find("ring+mcast").schedule(1).fabric_use is None


def test_who_sends_messages_beside_what_the_switch_does() -> None:
    beside = {name for name, mechanism in registered().items() if mechanism.needs_fabric and mechanism.sends_messages}
    assert beside == {"mcast", "ring+mcast"}
    assert {name: find(name).channels for name in ("mcast", "ring+mcast", "inagg", "ring", "ps")} == {
        "mcast": 4, "ring+mcast": 1, "inagg": 0, "ring": 1, "ps": 4
    }  # fmt: skip


def test_a_ring_of_a_thousand_gives_one_list_without_the_others() -> None:
    schedule = find("ring").schedule(1024)
    assert len(schedule.nodes) == 1024
    assert len(schedule.nodes["worker7"]) == 4 * 1023
