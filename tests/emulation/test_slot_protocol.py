"""The P4 program, packet by packet, in the embedded switch: send, expect, expect nothing else.

Ranks are plain UDP sockets here and the packets are made by hand, so that the wrong ones can be made, too.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from hostlib.protocol import constants
from hostlib.protocol.check_words import CheckWords, check_words
from hostlib.protocol.header import Header
from tests.conftest import Fabric, running_fabric

HEADER = constants.HEADER_BYTES

QUIET_S = 0.3


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's socket and what the controller told it."""

    socket: socket.socket
    place: dict[str, Any]

    @property
    def words(self) -> CheckWords:
        return check_words(self.place["secret"], self.place["world_size"], self.place["elements"])

    def header(self, **changes: int) -> Header:
        base = Header(
            job=self.place["job_id"],
            rank=self.place["rank"],
            epoch=self.place["epoch"],
            slot=self.place["pools"][0]["first_slot"],
            element_count=self.place["elements"],
        )
        return replace(base, **changes)

    def send(
        self,
        header: Header,
        elements: np.ndarray,
        through: socket.socket | None = None,
        to: tuple[str, int] | None = None,
    ) -> None:
        """Send a contribution with a right check word, unless the header brings one."""
        header = (
            header if header.check else replace(header, check=self.words.word(header, elements, [self.place["rank"]]))
        )
        fabric = (self.place["fabric"]["address"], self.place["fabric"]["port"])
        (through or self.socket).sendto(header.pack() + elements.astype(">i4").tobytes(), to or fabric)

    def receive(self) -> tuple[Header, np.ndarray]:
        data = self.socket.recv(1 << 16)
        return Header.unpack(data), np.frombuffer(data, ">i4", offset=constants.HEADER_BYTES).astype(np.int32)

    def hears_nothing(self) -> bool:
        self.socket.settimeout(QUIET_S)
        try:
            self.socket.recv(1 << 16)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5)
        return False


def vector(seed: int, elements: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**29), 2**29, elements, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Job:
    """Three ranks of one job, and the switch's counters since the job began."""

    name: str
    fabric: Fabric
    members: list[Member]
    before: dict[str, dict[str, int]]

    def drops(self) -> dict[str, int]:
        """Drops since the job began, by reason."""
        return self._since("drops")

    def events(self) -> dict[str, int]:
        return self._since("events")

    def wait_for(self, event: str, packets: int) -> None:
        """Until the switch has counted so many."""
        give_up = time.monotonic() + 5
        while self.events().get(event, 0) < packets:
            assert time.monotonic() < give_up, f"{event} stays at {self.events()}"

    def _since(self, kind: str) -> dict[str, int]:
        now = self.fabric.status()[kind]
        return {name: n - self.before[kind][name] for name, n in now.items() if n != self.before[kind][name]}


@pytest.fixture(scope="module", params=[64, 256, 2048])
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """A switch built for so many elements."""
    with running_fabric(tmp_path_factory.mktemp("fabric"), "--elements", str(request.param)) as fabric:
        yield fabric


@pytest.fixture
def job(fabric: Fabric, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of three ranks, ready."""
    name = request.node.name
    path = f"/v1/jobs/{quote(name)}/ranks"
    before = fabric.status()
    sockets = []
    for rank in range(3):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        sockets.append(sock)
        body = {"world_size": 3, "address": "127.0.0.1", "udp_ports": [sock.getsockname()[1]]}
        code, answer = fabric.call("POST", f"{path}/{rank}", body)
        assert code == 200, answer
    places = [fabric.call("GET", f"{path}/{rank}")[1] for rank in range(3)]
    assert [place["state"] for place in places] == ["ready"] * 3
    yield Job(path, fabric, [Member(s, p) for s, p in zip(sockets, places, strict=True)], before)
    for rank, sock in enumerate(sockets):
        fabric.call("DELETE", f"{path}/{rank}")
        sock.close()


def test_the_last_contribution_becomes_everybodys_result(job: Job) -> None:
    elements = job.members[0].place["elements"]
    vectors = [vector(rank, elements) // 3 for rank in range(3)]
    for rank, member in enumerate(job.members):
        member.send(member.header(exponent=7, next_exponent=member.words.next_word(100 + rank)), vectors[rank])
    for rank, member in enumerate(job.members):
        header, got = member.receive()
        assert np.array_equal(got, sum(vectors))
        assert (header.operation, header.rank) == (constants.OPERATION_RESULT, rank)
        assert (header.generation, header.slot) == (0, member.place["pools"][0]["first_slot"])
        assert header.next_exponent == member.words.next_word(102)
        assert member.words.is_right(header, got)
        assert member.hears_nothing()
    assert job.events() == {"absorbed": 2, "completed": 1, "replica": 3}
    assert job.drops() == {}


def test_a_duplicate_is_dropped_while_open_and_answered_when_finished(job: Job) -> None:
    first, second, third = job.members
    ones = np.ones(first.place["elements"], np.int32)
    first.send(first.header(), ones)
    first.send(first.header(), ones)
    assert first.hears_nothing()
    assert job.drops() == {"duplicate": 1}
    second.send(second.header(), ones)
    third.send(third.header(), ones)
    for member in job.members:
        assert np.array_equal(member.receive()[1], 3 * ones)
    second.send(second.header(), ones)
    header, got = second.receive()
    assert np.array_equal(got, 3 * ones)
    assert second.words.is_right(header, got)
    assert first.hears_nothing() and third.hears_nothing()
    assert job.events()["answered"] == 1


def test_generations_restart_the_set_and_old_ones_are_stale(job: Job) -> None:
    first = job.members[0]
    ones = np.ones(first.place["elements"], np.int32)
    for member in job.members[:2]:
        member.send(member.header(generation=0), 100 * ones)  # never finished
    job.wait_for("absorbed", 2)  # the switch reads port by port: later packets of one may overtake another's
    for member in job.members:
        member.send(member.header(generation=2), ones)  # same set, newer
    for member in job.members:
        header, got = member.receive()
        assert header.generation == 2
        assert np.array_equal(got, 3 * ones)
    first.send(first.header(generation=0), ones)
    assert first.hears_nothing()
    assert job.drops() == {"stale": 1}


def test_a_packet_from_the_future_stops_nobody(job: Job) -> None:
    first = job.members[0]
    ones = np.ones(first.place["elements"], np.int32)
    first.send(first.header(), ones)
    for generation in (4, 0x10000, 0x7FFFFFFE):
        first.send(first.header(generation=generation), 100 * ones)
    job.wait_for("absorbed", 1)
    for generation in (0, 2):
        for member in job.members[1 if generation == 0 else 0 :]:
            member.send(member.header(generation=generation), ones)
        for member in job.members:
            assert np.array_equal(member.receive()[1], 3 * ones)
    assert job.drops() == {"future": 3}


def test_generations_wrap_as_serial_numbers(job: Job) -> None:
    ones = np.ones(job.members[0].place["elements"], np.int32)
    for generation in (0xFFFFFFFC, 0xFFFFFFFE, 0):
        for member in job.members:
            member.send(member.header(generation=generation), ones)
        for member in job.members:
            assert member.receive()[0].generation == generation
    assert job.drops() == {}


WRONG_FIELDS = {
    "version": {"version": 9},
    "malformed": {"magic": 0x1234},
    "operation": {"operation": 2},
    "size": {"element_count": 32},
    "job": {"job": 999},
    "epoch": {"epoch": 5},
    "rank": {"rank": 7},
    "slot": {"slot": 511},
}


@pytest.mark.parametrize("reason", WRONG_FIELDS)
def test_a_wrong_field_is_dropped_under_its_own_counter(job: Job, reason: str) -> None:
    first = job.members[0]
    ones = np.ones(first.place["elements"], np.int32)
    first.send(first.header(**WRONG_FIELDS[reason]), ones)
    assert first.hears_nothing()
    assert job.drops() == {reason: 1}
    assert job.events() == {}


def test_a_spoofed_address_and_a_wrong_port_are_dropped(job: Job) -> None:
    first, second, _ = job.members
    ones = np.ones(first.place["elements"], np.int32)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as spoofer:
        spoofer.bind(("127.0.0.2", 0))
        first.send(first.header(), ones, through=spoofer)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
        neighbour.bind(("127.0.0.1", 0))  # another process of rank 0's host
        first.send(first.header(), ones, through=neighbour)
    fabric = second.place["fabric"]
    first.send(first.header(), ones, to=(fabric["address"], fabric["port"]))  # rank 0 through rank 1's port
    assert first.hears_nothing()
    assert job.drops() == {"source": 3}


@pytest.mark.parametrize("length", [1, HEADER - 1, HEADER, HEADER + 4, HEADER + 4 * 63 + 3])
def test_a_truncated_packet_is_dropped(job: Job, length: int) -> None:
    first = job.members[0]
    header = first.header()
    packet = header.pack() + bytes(4 * first.place["elements"])
    first.socket.sendto(packet[:length], (first.place["fabric"]["address"], first.place["fabric"]["port"]))
    assert first.hears_nothing()
    assert job.drops() == {"truncated": 1}


def test_a_packet_with_a_tail_is_dropped(job: Job) -> None:
    first = job.members[0]
    packet = first.header().pack() + bytes(4 * first.place["elements"] + 4)
    first.socket.sendto(packet, (first.place["fabric"]["address"], first.place["fabric"]["port"]))
    assert first.hears_nothing()
    assert job.drops() == {"malformed": 1}


def test_a_packet_of_an_ended_job_is_dropped(job: Job) -> None:
    first = job.members[0]
    for rank in range(3):
        assert job.fabric.call("DELETE", f"{job.name}/{rank}")[0] == 200
    first.send(first.header(), np.ones(first.place["elements"], np.int32))
    assert first.hears_nothing()
    assert job.drops() == {"job": 1}
