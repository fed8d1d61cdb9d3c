"""The server's end of the slot protocol, packet by packet: plain sockets are the switch and the workers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hostlib._engine import Server
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.checks import checks, engine_checks
from tests.marking_fabric import CE, ECT_0
from tests.packet_sizes import elements

ELEMENTS, WORLD_SIZE, FIRST_SLOT, SLOTS = elements(8), 3, 16, 4
VALUES = np.resize(np.arange(-3, 5, dtype=np.int32) * 1_000_003, ELEMENTS)
SOON_S, NEVER_S = 5.0, 0.1
WORDS, CHECK = checks(WORLD_SIZE, ELEMENTS), engine_checks(WORLD_SIZE, ELEMENTS)
SUM = Header(
    operation=constants.OPERATION_SUM,
    job=7,
    rank=1,
    epoch=9,
    generation=5,
    slot=FIRST_SLOT + 2,
    element_count=ELEMENTS,
    exponent=210,
    next_exponent=WORDS.next_word(211),
)


def datagram(header: Header, values: np.ndarray = VALUES) -> bytes:
    """A sum; its check word is right, unless the header has one of its own."""
    check = header.check or WORDS.word(header, values, range(WORLD_SIZE))
    return replace(header, check=check).pack() + values.astype(">i4").tobytes()


def end() -> socket.socket:
    """A socket on loopback, with room for a hundred packets of any size."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 << 20)
    made.bind(("127.0.0.1", 0))
    return made


@dataclass(frozen=True, slots=True)
class Bench:
    """A server between a switch and workers that are sockets of the test's."""

    server: Server
    switch: socket.socket
    workers: list[socket.socket]

    def configure(self, to_workers: bool) -> None:
        ends = [worker.getsockname() for worker in self.workers] if to_workers else []
        place = (*self.switch.getsockname(), SUM.job, SUM.epoch, WORLD_SIZE, FIRST_SLOT, SLOTS, ELEMENTS)
        self.server.configure(*place, CHECK, workers=ends)

    def send(self, data: bytes) -> None:
        self.switch.sendto(data, (self.server.address, self.server.port))

    @staticmethod
    def got(where: socket.socket, within_s: float = SOON_S) -> bytes | None:
        where.settimeout(within_s)
        try:
            return where.recv(1 << 16)
        except TimeoutError:
            return None

    def who_got(self, data: bytes) -> list[int]:
        """Workers that have one of these, and nothing else."""
        found = [rank for rank, worker in enumerate(self.workers) if self.got(worker, NEVER_S) == data]
        assert [self.got(worker, NEVER_S / 10) for worker in self.workers] == [None] * WORLD_SIZE
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(Server("127.0.0.1"), end(), [end() for _ in range(WORLD_SIZE)])
    yield made
    made.server.halt()
    for each in (made.switch, *made.workers):
        each.close()


def result_of(header: Header) -> bytes:
    sum_of_all = datagram(header)
    answer = Header.unpack(sum_of_all)
    answer = replace(answer, operation=constants.OPERATION_RESULT, rank=constants.RANK_ALL, flags=0)
    return answer.pack() + sum_of_all[constants.HEADER_BYTES :]


def test_a_sum_goes_back_to_the_switch_as_a_result_as_often_as_it_comes(bench: Bench) -> None:
    bench.configure(to_workers=False)
    for header in (SUM, replace(SUM, rank=2, flags=constants.FLAG_AGAIN), replace(SUM, generation=4)):
        bench.send(datagram(header))
        assert bench.got(bench.switch) == result_of(header)
    bench.server.halt()
    stats = bench.server.stats()
    assert (stats["packets_received"], stats["packets_sent"], stats["damaged"], stats["foreign"]) == (3, 3, 0, 0)


@pytest.mark.parametrize(
    ("packet", "counted"),
    [
        (datagram(replace(SUM, check=1)), "damaged"),
        (datagram(replace(SUM, next_exponent=SUM.next_exponent ^ 1)), "damaged"),
        (datagram(replace(SUM, next_exponent=SUM.next_exponent ^ 1 << 23)), "damaged"),
        (datagram(SUM, VALUES - 2**30), "damaged"),
        (datagram(replace(SUM, exponent=0), VALUES - 2**30), "damaged"),
        (datagram(replace(SUM, exponent=constants.EXPONENT_SPECIAL)), "damaged"),
        (datagram(replace(SUM, operation=constants.OPERATION_CONTRIBUTION)), "foreign"),
        (datagram(replace(SUM, job=8)), "foreign"),
        (datagram(replace(SUM, epoch=8)), "foreign"),
        (datagram(replace(SUM, slot=FIRST_SLOT - 1)), "foreign"),
        (datagram(replace(SUM, slot=FIRST_SLOT + SLOTS)), "foreign"),
        (datagram(SUM)[:-1], "foreign"),
        (datagram(SUM) + b"x", "foreign"),
    ],
)
@pytest.mark.parametrize("to_workers", [False, True])
def test_what_is_no_sum_of_the_job_is_not_answered(bench: Bench, packet: bytes, counted: str, to_workers: bool) -> None:
    bench.configure(to_workers)
    bench.send(packet)
    bench.send(datagram(SUM))
    assert bench.got(bench.workers[0] if to_workers else bench.switch) == result_of(SUM)
    bench.server.halt()
    stats = bench.server.stats()
    assert (stats[counted], stats["packets_sent"]) == (1, WORLD_SIZE if to_workers else 1)


@pytest.mark.parametrize(
    ("exponent", "values"),
    [
        (constants.EXPONENT_BIAS, np.full(ELEMENTS, 2**31 - 1, np.int32)),  # of int32 tensors
        (211, np.full(ELEMENTS, -(2**30), np.int32)),
        (constants.EXPONENT_SPECIAL, np.full(ELEMENTS, 1 + (1 << 10) + (1 << 20), np.int32)),
        (constants.EXPONENT_ZERO, np.zeros(ELEMENTS, np.int32)),
    ],
)
def test_sums_as_large_as_can_be_are_answered(bench: Bench, exponent: int, values: np.ndarray) -> None:
    bench.configure(to_workers=False)
    bench.send(datagram(replace(SUM, exponent=exponent), values))
    answer = bench.got(bench.switch)
    assert answer is not None and answer[constants.HEADER_BYTES :] == values.astype(">i4").tobytes()


def test_workers_get_a_sum_once_each_and_again_who_asks(bench: Bench) -> None:
    bench.configure(to_workers=True)
    bench.send(datagram(SUM))
    assert bench.who_got(result_of(SUM)) == [0, 1, 2]
    bench.send(datagram(replace(SUM, rank=2)))
    assert bench.who_got(result_of(SUM)) == [2]
    leaf = replace(SUM, rank=0x8001)  # Whoever asked is behind it.
    bench.send(datagram(leaf))
    assert bench.who_got(result_of(SUM)) == [0, 1, 2]


def test_workers_do_not_get_what_all_have_had(bench: Bench) -> None:
    bench.configure(to_workers=True)
    for generation in (0xFFFFFFFF, 0):  # The next: serial numbers, as in the switch.
        bench.send(datagram(replace(SUM, generation=generation)))
        assert bench.who_got(result_of(replace(SUM, generation=generation))) == [0, 1, 2]
    bench.send(datagram(replace(SUM, generation=0xFFFFFFFF)))
    assert bench.who_got(b"") == []
    bench.server.halt()
    assert bench.server.stats()["duplicates"] == 1


def test_more_sums_than_a_batch_reach_every_worker_in_order(bench: Bench) -> None:
    bench.configure(to_workers=True)
    generations = range(100, 200)
    for generation in generations:
        bench.send(datagram(replace(SUM, generation=generation)))
    for worker in bench.workers:
        assert [bench.got(worker) for _ in generations] == [
            result_of(replace(SUM, generation=generation)) for generation in generations
        ]


@pytest.mark.parametrize("to_workers", [False, True])
def test_a_mark_on_a_sum_is_repeated_on_its_result(bench: Bench, to_workers: bool) -> None:
    bench.configure(to_workers)
    ends = bench.workers if to_workers else [bench.switch]
    for each in ends:
        each.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    types = [ECT_0, CE, CE, *[ECT_0] * 40, CE, ECT_0, *[CE] * 40]
    for generation, type_of_service in enumerate(types):
        bench.switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, type_of_service)
        bench.send(datagram(replace(SUM, generation=generation)))
    for each in ends:
        each.settimeout(SOON_S)
        for generation, type_of_service in enumerate(types):
            data, control, *_ = each.recvmsg(1 << 16, 64)
            assert data == result_of(replace(SUM, generation=generation))
            assert [word[2][0] for word in control] == [type_of_service]
    bench.server.halt()
    assert bench.server.stats()["marked"] == types.count(CE)


def test_a_new_place_is_a_new_world(bench: Bench) -> None:
    bench.configure(to_workers=True)
    bench.send(datagram(SUM))
    assert bench.who_got(result_of(SUM)) == [0, 1, 2]
    bench.configure(to_workers=True)
    bench.send(datagram(SUM))
    assert bench.who_got(result_of(SUM)) == [0, 1, 2]


def test_a_place_that_cannot_be_is_refused(bench: Bench) -> None:
    place = (*bench.switch.getsockname(), SUM.job, SUM.epoch, WORLD_SIZE, FIRST_SLOT, SLOTS)
    with pytest.raises(ValueError, match="all workers, or none"):
        bench.server.configure(*place, ELEMENTS, CHECK, workers=[("127.0.0.1", 1)])
    with pytest.raises(ValueError, match="impossible place"):
        bench.server.configure(*place, 0, CHECK)
    with pytest.raises(ValueError, match="of as many elements and ranks"):
        bench.server.configure(*place, ELEMENTS - 1, CHECK)
