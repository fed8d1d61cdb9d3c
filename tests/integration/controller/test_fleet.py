"""The P4Runtime side, against a server in this process that keeps what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from controller.errors import ElectionError, SwitchError
from controller.jobs.switch_share import Echo, Member, SwitchShare
from controller.switches.own_entries import OwnEntries
from controller.switches.program import load_artifact
from controller.switches.session import P4RuntimeSession
from hostlib.protocol import constants
from tests.integration.controller.memory_switch import Running

FABRIC_ADDRESS = "10.255.255.254"

OWN_ENTRIES = 3  # the fabric's address, the MAC that ARP is told for it, and that nobody sends from it


@pytest.fixture
def running() -> Iterator[Running]:
    started = Running()
    yield started
    started.stop()


@pytest.fixture
def fabric(running: Running) -> Iterator[P4RuntimeSession]:
    connected = P4RuntimeSession(running.address, 1, take_over=True)
    yield connected
    connected.close()


@contextmanager
def stranger(running: Running, election_id: int) -> Iterator[None]:
    """Another controller's stream, which bids."""
    bid = p4runtime_pb2.StreamMessageRequest()
    bid.arbitration.device_id = 1
    bid.arbitration.election_id.high, bid.arbitration.election_id.low = election_id >> 64, election_id & (2**64 - 1)
    ended = threading.Event()

    def requests() -> Iterator[p4runtime_pb2.StreamMessageRequest]:
        yield bid
        ended.wait()

    with grpc.insecure_channel(running.address) as channel:
        next(p4runtime_pb2_grpc.P4RuntimeStub(channel).StreamChannel(requests()))
        yield
        ended.set()
    wait_until(lambda: not running.switch._arbiter.clients)


def wait_until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.005)


@pytest.fixture
def job() -> list[SwitchShare]:
    members = tuple(Member(rank, 1 + rank, 0xAA, "127.0.0.1", 5000 + rank, 1 + rank) for rank in range(2))
    echoes = tuple(Echo(rank, 1 + rank, 0xAA, "127.0.0.1", 5000 + rank, 0xBEE0 + rank) for rank in range(2))
    return [SwitchShare(1, 99, 0, 128, 1, members, echoes=echoes)]


def test_the_program_is_pushed_once(running: Running, fabric: P4RuntimeSession) -> None:
    artifact = load_artifact(64)
    assert fabric.push(artifact, OwnEntries(FABRIC_ADDRESS))
    assert running.switch.config.p4_device_config == artifact.program
    assert len(running.switch.entities) == OWN_ENTRIES
    assert fabric.program == "netfold-v1model-64"
    assert not fabric.push(artifact, OwnEntries(FABRIC_ADDRESS))
    assert (running.switch.pushes, len(running.switch.entities)) == (1, OWN_ENTRIES)
    assert fabric.push(load_artifact(256), OwnEntries(FABRIC_ADDRESS))


def test_a_later_controller_takes_over_without_a_push(
    running: Running, fabric: P4RuntimeSession, job: list[SwitchShare]
) -> None:
    artifact = load_artifact(64)
    fabric.push(artifact, OwnEntries(FABRIC_ADDRESS))
    fabric.install(job)
    later = P4RuntimeSession(running.address, 1, take_over=True)
    try:
        assert not later.push(artifact, OwnEntries(FABRIC_ADDRESS))
        later.remove(job)
    finally:
        later.close()
    assert len(running.switch.entities) == OWN_ENTRIES


def test_what_was_left_half_done_is_repaired(
    running: Running, fabric: P4RuntimeSession, job: list[SwitchShare]
) -> None:
    own = OwnEntries(FABRIC_ADDRESS, 0x0200_0000_0002, {"02:00:00:00:00:09": 9}, [9], {"10.9.0.2": 4}, [4], 500)
    fabric.push(load_artifact(64), own)
    fabric.install(job)
    whole = list(running.switch.entities)
    fabric.install([replace(job[0], job_id=2, epoch=100, group=2, members=tuple(
        replace(member, replica=3 + member.rank) for member in job[0].members
    ))])  # fmt: skip
    # A job whose removal had begun, one whose had ended but for some entries, and own entries that went with it.
    half = running.switch.entities
    gone = whole[1::3]
    running.switch.entities = [entity for number, entity in enumerate(half) if number % 2 and entity not in gone]
    assert set(whole) - set(running.switch.entities) and set(running.switch.entities) - set(whole)
    fabric.dirty = True
    fabric.reconcile([job], own)
    assert (sorted(running.switch.entities), running.switch.pushes, fabric.dirty) == (sorted(whole), 1, False)
    writes = list(running.switch.entities)
    fabric.reconcile([job], own)
    assert running.switch.entities == writes, "what is there is left alone"
    running.switch.entities.pop()
    running.switch.refuse_write = 0
    with pytest.raises(SwitchError, match="refused a write: the table is full"):
        fabric.reconcile([job], own)


def test_another_controllers_switch_is_not_taken_unless_told_so(running: Running, fabric: P4RuntimeSession) -> None:
    says = rf"has another controller as its primary \(election id {fabric.election_id}\): --take-over takes it"
    with pytest.raises(ElectionError, match=says):
        P4RuntimeSession(running.address, 1)
    assert fabric.up
    later = P4RuntimeSession(running.address, 1, take_over=True)
    try:
        assert later.election_id > fabric.election_id and later.up
        wait_until(lambda: not fabric.up)
    finally:
        later.close()


def test_an_election_id_is_above_the_highest_seen(running: Running) -> None:
    """Whatever the clock says, and though who had that one is gone."""
    with stranger(running, 2**64 + 5):
        pass
    connected = P4RuntimeSession(running.address, 1)
    try:
        assert connected.election_id == 2**64 + 6 and connected.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
        again = P4RuntimeSession(running.address, 1, former=connected.election_id)
        assert again.election_id == 2**64 + 7
        again.close()
    finally:
        connected.close()
    with (
        stranger(running, 2**128 - 1),
        pytest.raises(ElectionError, match="a primary with the highest election id that there is: restart"),
    ):
        P4RuntimeSession(running.address, 1, take_over=True)


def test_another_program_is_refused(running: Running) -> None:
    first = P4RuntimeSession(running.address, 1)
    first.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    first.close()
    wait_until(lambda: not running.switch._arbiter.clients)
    for anew in (False, True):
        later = P4RuntimeSession(running.address, 1)
        with pytest.raises(SwitchError, match="runs another program than netfold-v1model-256: stop who uses it"):
            later.push(load_artifact(256), OwnEntries(FABRIC_ADDRESS), anew)
        later.close()
        wait_until(lambda: not running.switch._arbiter.clients)
    assert running.switch.config.p4_device_config == load_artifact(64).program


def test_entries_come_and_go_with_the_job(running: Running, fabric: P4RuntimeSession, job: list[SwitchShare]) -> None:
    fabric.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    before = list(running.switch.entities)
    fabric.install(job)
    assert len(running.switch.entities) > len(before)
    fabric.remove(job)
    assert running.switch.entities == before


@pytest.mark.parametrize("room", [13, 14])
def test_a_table_without_room_for_the_echoes_has_none_of_the_job(
    running: Running, fabric: P4RuntimeSession, job: list[SwitchShare], room: int
) -> None:
    """Echoes are written together: of two, none has room, or one."""
    fabric.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    before = list(running.switch.entities)
    running.switch.room = OWN_ENTRIES + room
    with pytest.raises(SwitchError, match="refused a write: the table is full"):
        fabric.install(job)
    assert running.switch.entities == before and not fabric.dirty
    running.switch.room, running.switch.refuse_write = None, 13
    fabric.install(job)
    assert len(set(running.switch.entities)) == len(running.switch.entities) == len(before) + 15, "one by one"


@pytest.mark.parametrize("number", range(13))
def test_entries_are_installed_all_or_none(
    running: Running, fabric: P4RuntimeSession, job: list[SwitchShare], number: int
) -> None:
    """Two replicas, a group, two verdicts per job, four per rank: thirteen writes, any may fail. Then the echoes."""
    fabric.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    before = list(running.switch.entities)
    running.switch.refuse_write = number
    with pytest.raises(SwitchError, match="refused a write: the table is full") as refused:
        fabric.install(job)
    assert len(str(refused.value).splitlines()) == 1
    assert running.switch.entities == before
    fabric.install(job)
    assert len(running.switch.entities) == len(before) + 15


def test_counters_of_both_pipelines_are_summed(running: Running, fabric: P4RuntimeSession) -> None:
    fabric.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    counters = ("events", "egress_events", "port_in", "port_out")
    ids = {name: fabric.names().counter_id(name) for name in counters}
    assert len(set(ids.values())) == 4
    running.switch.cells = {
        ids["events"]: {constants.EVENT_ABSORBED: (6, 0), constants.DROP_STALE: (2, 0), 63: (9, 0)},
        ids["egress_events"]: {constants.EVENT_REPLICA: (4, 0), constants.DROP_STALE: (1, 0)},
        ids["port_in"]: {1: (5, 500), 2: (0, 0), 7: (1, 60)},
        ids["port_out"]: {1: (4, 400), 3: (2, 20)},
    }
    events, drops = fabric.counts()
    assert events == {**dict.fromkeys(constants.EVENTS, 0), "absorbed": 6, "replica": 4}
    assert drops == {**dict.fromkeys(constants.DROPS, 0), "stale": 3}
    assert fabric.ports() == {
        1: {"packets_in": 5, "bytes_in": 500, "packets_out": 4, "bytes_out": 400},
        3: {"packets_in": 0, "bytes_in": 0, "packets_out": 2, "bytes_out": 20},
        7: {"packets_in": 1, "bytes_in": 60, "packets_out": 0, "bytes_out": 0},
    }


def test_a_switch_that_dies_is_down(running: Running, fabric: P4RuntimeSession, job: list[SwitchShare]) -> None:
    fabric.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
    assert fabric.up
    running.stop()
    fabric._client.stream_recv_thread.join(5)
    assert not fabric.up
    for use in (lambda: fabric.install(job), fabric.counts, fabric.ports):
        with pytest.raises(SwitchError, match="is gone") as refused:
            use()
        assert len(str(refused.value).splitlines()) == 1


def test_nobody_at_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.switches.session.CONNECT_TIMEOUT_S", 0.2)
    with pytest.raises(SwitchError, match=r"no switch answers P4Runtime at 127\.0\.0\.1:1"):
        P4RuntimeSession("127.0.0.1:1", 1)
