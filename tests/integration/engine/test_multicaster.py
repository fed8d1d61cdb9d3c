"""Both ends of a multicast stream, packet by packet: a plain socket is the switch."""

from __future__ import annotations

import os
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hostlib._engine import Multicaster
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.checks import checks, engine_checks
from tests.packet_sizes import elements

ELEMENTS, FIRST_SLOT, SLOTS = elements(8), 16, 8
BYTES = 4 * ELEMENTS
JOB, EPOCH, RANK, SENDER = 7, 9, 1, 2
RECEIVERS = [0, 1]
SOON_S, NEVER_S, PAUSE_S = 5.0, 0.15, 0.2
CS6 = 48 << 2  # a DSCP (RFC 2474), in the type of service
SO_RCVPRIORITY = 82  # of asm-generic/socket.h
TYPE_OF_SERVICE, PRIORITY = (socket.IPPROTO_IP, socket.IP_TOS), (socket.SOL_SOCKET, socket.SO_PRIORITY)
WORDS, CHECK = checks(1, ELEMENTS), engine_checks(1, ELEMENTS)


@dataclass(frozen=True, slots=True)
class Packet:
    """One that the host sent."""

    header: Header
    words: np.ndarray

    @property
    def position(self) -> int:
        return self.header.generation * SLOTS + self.header.slot - FIRST_SLOT

    @property
    def low(self) -> int:
        """As a NACK has it."""
        return int(self.words[1]) << 32 | int(self.words[2])


@dataclass(frozen=True, slots=True)
class Bench:
    """A host, its switch, and the others: the receivers of its stream, or the first its source."""

    host: Multicaster
    switch: socket.socket
    others: tuple[socket.socket, ...]

    def configure(self, source: bool, slots: int = SLOTS) -> None:
        receivers = RECEIVERS if source else []
        ends = [each.getsockname() for each in self.others[: max(len(receivers), 1)]]
        streams = [(FIRST_SLOT, slots, receivers, ends)]
        self.host.configure(*self.switch.getsockname(), JOB, EPOCH, RANK, SENDER, streams, ELEMENTS, CHECK)

    def send(self, data: bytes) -> None:
        self.switch.sendto(data, (self.host.address, self.host.port))

    def acknowledge(self, rank: int, low: int, **changes: int) -> None:
        """A receiver says that it has everything before a position."""
        self.others[rank].sendto(acknowledgement(rank, low, **changes), (self.host.address, self.host.port))

    def answer(self, low: int, sender: int = 0, **changes: int) -> None:
        """A host's source says that it has sent everything before a position."""
        data = acknowledgement(RANK, low, **changes)
        self.others[sender].sendto(data, (self.host.address, self.host.port))

    def got(self, within_s: float = SOON_S) -> Packet | None:
        return self._received(self.switch, within_s)

    def told(self, within_s: float = SOON_S, other: int = 0) -> Packet | None:
        """What the source was told, past the switch; or the receiver of a rank."""
        return self._received(self.others[other], within_s)

    def _received(self, at: socket.socket, within_s: float) -> Packet | None:
        at.settimeout(within_s)
        try:
            data = at.recv(1 << 16)
        except TimeoutError:
            return None
        header = Header.unpack(data)
        words = np.frombuffer(data, ">u4", offset=constants.HEADER_BYTES)
        assert WORDS.is_right(header, words) and header.check < WORDS.prime
        return Packet(header, words)

    def gets(self, positions: list[int]) -> list[Packet]:
        """So many packets, of these positions in this order, and nothing else."""
        found = [self.got() for _ in positions]
        assert [packet and packet.position for packet in found] == positions
        assert self.got(NEVER_S) is None
        return [packet for packet in found if packet is not None]


@pytest.fixture
def bench() -> Iterator[Bench]:
    switch, *others = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3))
    for each in (switch, *others):
        each.bind(("127.0.0.1", 0))
    made = Bench(Multicaster("127.0.0.1"), switch, tuple(others))
    yield made
    made.host.halt()
    for each in (switch, *others):
        each.close()


def priority_of(host: Multicaster) -> int:
    """SO_PRIORITY of the socket of this process that has the host's port."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(fd))
        except OSError:  # the listed directory's own
            continue
        try:
            found = socket.socket(fileno=copy)
        except OSError:  # no socket, or one without an address
            os.close(copy)
            continue
        with found:
            if found.type == socket.SOCK_DGRAM and found.getsockname() == (host.address, host.port):
                return found.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
    raise AssertionError("the host has no socket")


@pytest.mark.parametrize("source", [True, False], ids=["source", "receiver"])
def test_what_receivers_send_overtakes_others_in_the_host(bench: Bench, source: bool) -> None:
    """The chunks of a host that only sends do not: its acknowledgements and requests would wait for all of them."""
    bench.configure(source)
    assert priority_of(bench.host) == (0 if source else 6)


def sees_priority(end: socket.socket) -> bool:
    """Have a socket see the type of service of datagrams, and their priority; False: this kernel has none to see."""
    end.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    try:
        end.setsockopt(socket.SOL_SOCKET, SO_RCVPRIORITY, 1)
    except OSError:
        return False
    return True


def control_of(end: socket.socket) -> dict[tuple[int, int], int]:
    """What the kernel says of the next datagram."""
    _, said, _, _ = end.recvmsg(1 << 16, 256)
    return {(level, kind): int.from_bytes(value, sys.byteorder) for level, kind, value in said}


def test_a_sources_answer_does_not_overtake_its_chunks(bench: Bench) -> None:
    asking = bench.others[0]
    expected = {TYPE_OF_SERVICE: 0, PRIORITY: 0} if sees_priority(asking) else {TYPE_OF_SERVICE: 0}
    bench.configure(True)
    bench.host.send(0, contents(2))
    bench.gets([0, 1])
    bench.acknowledge(0, 0, flags=constants.FLAG_AGAIN)
    asking.settimeout(SOON_S)
    assert control_of(asking) == expected


def test_what_a_receiver_tells_its_source_is_urgent_on_the_way_too(bench: Bench) -> None:
    """As far as the kernel can: before 6.14 it knows no priority of one datagram, so it has no DSCP either."""
    source = bench.others[0]
    expected = {TYPE_OF_SERVICE: CS6, PRIORITY: 6} if sees_priority(source) else {TYPE_OF_SERVICE: 0}
    bench.configure(False)
    buffer = bytearray(BYTES)
    ticket = bench.host.receive(0, buffer)
    source.settimeout(SOON_S)
    assert control_of(source) == expected
    bench.switch.sendto(chunk(0), (bench.host.address, bench.host.port))
    assert bench.host.wait(ticket, SOON_S)


def packet(operation: int, position: int, data: bytes, rank: int = RANK, **changes: int) -> bytes:
    """One of the stream; its check word is right, unless there is something wrong with it."""
    fields = {"job": JOB, "epoch": EPOCH, "generation": position // SLOTS, "slot": FIRST_SLOT + position % SLOTS}
    header = Header(operation=operation, rank=rank, element_count=len(data) // 4, exponent=0, next_exponent=0, **fields)
    words = np.frombuffer(data, ">i4").astype(np.int32)
    header = replace(header, check=WORDS.word(header, words))
    return replace(header, **changes).pack() + data


def chunk(position: int, **changes: int) -> bytes:
    return packet(constants.OPERATION_CHUNK, position, content(position), **changes)


def content(position: int) -> bytes:
    return bytes((position + i) % 256 for i in range(BYTES))


def contents(count: int) -> np.ndarray:
    return np.frombuffer(b"".join(map(content, range(count))), np.uint8).copy()


def nack(position: int, rank: int, low: int, **changes: int) -> bytes:
    data = progress(rank, low) + bytes(BYTES - 12)
    return packet(constants.OPERATION_NACK, position, data, rank=RANK, **changes)


def acknowledgement(rank: int, low: int, **changes: int) -> bytes:
    return packet(constants.OPERATION_ACKNOWLEDGEMENT, 0, progress(rank, low), rank=rank, **changes)


def progress(rank: int, low: int) -> bytes:
    return np.array([rank, low >> 32, low & 0xFFFFFFFF], ">u4").tobytes()


# ---- the source ------------------------------------------------------------------------------------------------------


def test_a_source_sends_a_window_and_goes_on_when_every_receiver_has_told_it(bench: Bench) -> None:
    bench.configure(source=True)
    ticket = bench.host.send(0, contents(12))
    sent = bench.gets(list(range(SLOTS)))
    assert all(each.header.rank == SENDER and each.header.operation == constants.OPERATION_CHUNK for each in sent)
    assert [each.words.tobytes() for each in sent] == [content(position) for position in range(SLOTS)]
    bench.acknowledge(rank=0, low=3)
    assert bench.got(NEVER_S) is None
    bench.acknowledge(rank=1, low=2)
    bench.gets([8, 9])
    assert not bench.host.wait(ticket, 0)
    bench.send(nack(9, rank=1, low=9))  # A NACK says it as well.
    bench.gets([9, 10])
    bench.acknowledge(rank=0, low=9)
    bench.gets([11])
    assert bench.host.wait(ticket, SOON_S)


def test_a_message_that_ends_within_a_packet_is_filled_up_with_zeros(bench: Bench) -> None:
    bench.configure(source=True)
    for size in (0, 1, BYTES + 1):
        assert bench.host.wait(bench.host.send(0, contents(2)[:size]), SOON_S)
    assert [each.words.tobytes() for each in bench.gets([0, 1, 2])] == [
        content(0)[:1] + bytes(BYTES - 1),
        content(0),
        content(1)[:1] + bytes(BYTES - 1),
    ]


def test_a_chunk_that_the_switch_lacks_is_sent_again_once_for_all_who_ask(bench: Bench) -> None:
    bench.configure(source=True)
    values = contents(3)
    ticket = bench.host.send(0, values)
    first = bench.gets([0, 1, 2])
    assert bench.host.wait(ticket, SOON_S)
    values[:] = 0  # It is the caller's again.
    bench.send(nack(1, rank=0, low=1))
    bench.send(nack(1, rank=1, low=0))
    (again,) = bench.gets([1])
    assert again.words.tobytes() == first[1].words.tobytes() == content(1)
    assert bench.host.stats()["retransmits"] == 1


def test_a_source_answers_a_receiver_that_lacks_what_was_sent(bench: Bench) -> None:
    """Past the switch, and only the one that asks."""
    bench.configure(source=True)
    bench.host.send(0, contents(3))
    bench.gets([0, 1, 2])
    bench.acknowledge(rank=1, low=1)
    assert bench.told(NEVER_S, other=1) is None, "it did not ask"
    bench.acknowledge(rank=1, low=3, flags=constants.FLAG_AGAIN)
    assert bench.told(NEVER_S, other=1) is None, "it has everything"
    bench.acknowledge(rank=0, low=1, flags=constants.FLAG_AGAIN)
    answer = bench.told(other=0)
    assert answer is not None and (answer.header.operation, answer.low) == (constants.OPERATION_ACKNOWLEDGEMENT, 3)
    assert (answer.header.flags, answer.words[0]) == (0, 0)
    assert bench.told(NEVER_S, other=1) is None
    assert bench.got(NEVER_S) is None


@pytest.mark.parametrize(
    ("asked", "counted"),
    [
        (nack(SLOTS, rank=0, low=3, check=1), "damaged"),
        (nack(SLOTS, rank=5, low=3), "foreign"),
        (nack(SLOTS, rank=0, low=SLOTS + 1), "foreign"),
        (nack(SLOTS, rank=0, low=3, epoch=EPOCH - 1), "foreign"),
        (nack(SLOTS, rank=0, low=3, job=JOB + 1), "foreign"),
        (nack(SLOTS, rank=0, low=3, slot=FIRST_SLOT + SLOTS), "foreign"),
        (nack(SLOTS, rank=0, low=3)[:-1], "foreign"),
        (chunk(0), "foreign"),
        (acknowledgement(rank=0, low=3, check=1), "damaged"),
        (acknowledgement(rank=5, low=3), "foreign"),
        (acknowledgement(rank=0, low=SLOTS + 1), "foreign"),
        (acknowledgement(rank=0, low=3, epoch=EPOCH - 1), "foreign"),
        (acknowledgement(rank=0, low=3, element_count=4), "foreign"),
        (acknowledgement(rank=0, low=3, slot=FIRST_SLOT - 1), "foreign"),
        (acknowledgement(rank=0, low=3)[:-4], "foreign"),
        (acknowledgement(rank=0, low=3) + bytes(4), "foreign"),
    ],
)
def test_what_is_no_word_of_a_receivers_moves_nothing(bench: Bench, asked: bytes, counted: str) -> None:
    bench.configure(source=True)
    bench.host.send(0, contents(SLOTS + 1))
    bench.gets(list(range(SLOTS)))
    bench.send(nack(SLOTS, rank=1, low=3))
    bench.send(asked)
    assert bench.got(NEVER_S) is None
    bench.host.halt()
    assert bench.host.stats()[counted] == 1


def test_nobody_else_can_tell_a_source_to_go_on(bench: Bench) -> None:
    bench.configure(source=True)
    bench.host.send(0, contents(SLOTS + 1))
    bench.gets(list(range(SLOTS)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for rank in RECEIVERS:
            stranger.sendto(acknowledgement(rank, low=3), (bench.host.address, bench.host.port))
        assert bench.got(NEVER_S) is None
    for rank in RECEIVERS:
        bench.acknowledge(rank, low=3)
    bench.gets([SLOTS])


def test_a_receiver_that_is_gone_is_not_taken_for_the_switch(bench: Bench) -> None:
    """Both ports refuse packets; only the switch's refusals count."""
    bench.configure(source=False)
    bench.others[0].close()
    bench.host.receive(0, np.zeros(4 * SLOTS * BYTES, np.uint8))
    give_up = time.monotonic() + SOON_S
    for position in range(4 * SLOTS):
        bench.send(chunk(position))
        while bench.host.position <= position:  # What comes beyond its window is lost.
            assert time.monotonic() < give_up
            time.sleep(0.001)
    while bench.host.stats()["packets_sent"] < SLOTS:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    bench.host.halt()
    assert bench.host.stats()["refused"] == 0


def test_a_source_is_told_that_the_switch_is_gone(bench: Bench) -> None:
    bench.configure(source=True)
    bench.switch.close()
    bench.host.send(0, contents(2 * SLOTS))
    for low in range(1, SLOTS):
        for rank in RECEIVERS:
            bench.acknowledge(rank, low)
        time.sleep(0.01)
    bench.host.halt()
    assert bench.host.stats()["refused"] >= 2


# ---- a receiver ------------------------------------------------------------------------------------------------------


def test_a_receiver_tells_how_far_it_is_after_each_quarter_of_the_window(bench: Bench) -> None:
    bench.configure(source=False)
    into = np.zeros(6 * BYTES, np.uint8)
    ticket = bench.host.receive(0, into)
    for position in range(6):
        bench.send(chunk(position))
    assert bench.host.wait(ticket, SOON_S)
    assert np.array_equal(into, contents(6))
    lows = []
    while (each := bench.told(NEVER_S)) is not None:
        assert (each.header.operation, each.header.rank) == (constants.OPERATION_ACKNOWLEDGEMENT, RANK)
        assert (each.header.element_count, each.position, each.words[0]) == (3, 0, RANK)
        lows.append(each.low)
    assert lows == sorted(set(lows)) and lows[-1] >= 6 - SLOTS // 4
    assert bench.got(NEVER_S) is None


def test_what_comes_before_anybody_waits_for_it_is_kept_and_not_told(bench: Bench) -> None:
    bench.configure(source=False)
    for position in reversed(range(SLOTS)):
        bench.send(chunk(position))
    while (asked := bench.got(NEVER_S)) is not None:
        assert asked.low == 0, "a pause between them lets it ask for some, but it tells of none"
    into = [np.zeros(5 * BYTES - 1, np.uint8), np.zeros(3 * BYTES, np.uint8)]
    for each in into:
        assert bench.host.wait(bench.host.receive(0, each), SOON_S)
    assert np.array_equal(into[0], contents(5)[:-1])
    assert np.array_equal(into[1], contents(SLOTS)[5 * BYTES :])
    assert bench.host.stats()["duplicates"] == 0


def test_a_hole_is_asked_for_and_again_until_it_is_filled(bench: Bench) -> None:
    bench.configure(source=False)
    into = np.zeros(4 * BYTES, np.uint8)
    ticket = bench.host.receive(0, into)
    for position in (0, 1, 3):
        bench.send(chunk(position))
    asked = [bench.got() for _ in range(3)]
    assert [(each.position, each.low) for each in asked if each] == [(2, 2)] * 3
    bench.send(chunk(2, check=0))
    bench.send(chunk(2))
    assert bench.host.wait(ticket, SOON_S)
    assert np.array_equal(into, contents(4))
    assert bench.host.stats()["damaged"] == 1


def test_a_round_trip_is_from_a_question_to_its_answer(bench: Bench) -> None:
    """Of a question that is the only one: else nobody knows which of them is answered."""
    bench.configure(source=False)
    bench.host.receive(0, np.zeros(BYTES, np.uint8))
    give_up = time.monotonic() + 4 * SOON_S
    while bench.told(2 * PAUSE_S) is not None:  # until it asks so seldom that an answer comes between two questions
        assert time.monotonic() < give_up
    bench.answer(0)
    while bench.host.stats()["rtt_ns"] == 0:
        assert bench.told() is not None and time.monotonic() < give_up
        time.sleep(PAUSE_S)
        bench.answer(0)
    assert bench.host.stats()["rtt_ns"] >= 0.9e9 * PAUSE_S


def test_a_pause_between_messages_is_no_round_trip(bench: Bench) -> None:
    bench.configure(source=False)
    message = SLOTS + SLOTS // 2
    for first in (0, message):
        ticket = bench.host.receive(0, np.zeros(message * BYTES, np.uint8))
        for position in range(first, first + SLOTS):
            bench.send(chunk(position))
        while (told := bench.told()) is not None and told.low < first + SLOTS // 2:
            pass
        assert told is not None
        for position in range(first + SLOTS, first + message):
            bench.send(chunk(position))
        assert bench.host.wait(ticket, SOON_S)
        time.sleep(PAUSE_S)
    assert bench.host.stats()["rtt_ns"] < 0.9e9 * PAUSE_S / 8


def test_a_receiver_that_waits_asks_its_source_and_then_the_switch_for_what_was_sent(bench: Bench) -> None:
    """The last may be lost, or what it has told its source. While there is nothing to send, only short packets say so."""
    bench.configure(source=False)
    into = np.zeros(4 * BYTES, np.uint8)
    ticket = bench.host.receive(0, into)
    for _ in range(3):
        asked = bench.told()
        assert asked is not None and (asked.low, asked.words[0], asked.header.rank) == (0, RANK, RANK)
        assert asked.header.operation == constants.OPERATION_ACKNOWLEDGEMENT
        assert asked.header.flags == constants.FLAG_AGAIN
    assert bench.got(NEVER_S) is None
    bench.answer(3)
    for position in range(3):
        missed = bench.got()
        assert missed is not None and (missed.header.operation, missed.low) == (constants.OPERATION_NACK, 0)
        assert missed.position == position
    for position in range(3):
        bench.send(chunk(position))
    while (asked := bench.told()) is not None and asked.low < 3:
        pass
    bench.answer(4)
    while (last := bench.got()) is not None and last.position < 3:
        pass
    assert last is not None and (last.position, last.low) == (3, 3)
    bench.send(chunk(3))
    assert bench.host.wait(ticket, SOON_S)
    assert np.array_equal(into, contents(4))


@pytest.mark.parametrize(
    "answer", [{"low": 0}, {"low": SLOTS + 1}, {"low": 2, "check": 1}, {"low": 2, "epoch": EPOCH - 1}]
)
def test_an_impossible_answer_has_nothing_asked_for(bench: Bench, answer: dict[str, int]) -> None:
    bench.configure(source=False)
    ticket = bench.host.receive(0, np.zeros(2 * BYTES, np.uint8))
    bench.answer(**answer)
    assert bench.got(NEVER_S) is None
    for position in range(2):
        bench.send(chunk(position))
    assert bench.host.wait(ticket, SOON_S)


def test_nobody_else_can_say_what_a_source_has_sent(bench: Bench) -> None:
    bench.configure(source=False)
    bench.host.receive(0, np.zeros(2 * BYTES, np.uint8))
    bench.answer(2, sender=1)
    assert bench.got(NEVER_S) is None
    bench.answer(2)
    assert bench.got() is not None


def test_nobody_waits_nobody_asks(bench: Bench) -> None:
    bench.configure(source=False)
    assert bench.host.wait(bench.host.receive(0, np.zeros(0, np.uint8)), 0)
    assert bench.got(NEVER_S) is None


@pytest.mark.parametrize(
    ("came", "counted"),
    [
        (chunk(0, check=1), "damaged"),
        (chunk(0, exponent=1), "damaged"),
        (chunk(0, epoch=EPOCH + 1), "foreign"),
        (packet(constants.OPERATION_RESULT, 0, content(0)), "foreign"),
        (chunk(0, slot=FIRST_SLOT - 1), "foreign"),
        (chunk(SLOTS), "duplicates"),
        (chunk(0) + b"x", "foreign"),
    ],
)
def test_what_is_no_chunk_of_the_window_leaves_nothing(bench: Bench, came: bytes, counted: str) -> None:
    bench.configure(source=False)
    into = np.zeros(BYTES, np.uint8)
    ticket = bench.host.receive(0, into)
    bench.send(came)
    assert not bench.host.wait(ticket, NEVER_S)
    assert not into.any()
    bench.send(chunk(0))
    assert bench.host.wait(ticket, SOON_S)
    assert np.array_equal(into, contents(1))
    bench.host.halt()
    assert bench.host.stats()[counted] == 1


def test_the_same_damage_again_and_again_is_the_switchs_own(bench: Bench) -> None:
    bench.configure(source=False)
    bench.host.receive(0, np.zeros(BYTES, np.uint8))
    for _ in range(3):
        bench.send(chunk(0, check=1))
    bench.host.wait(bench.host.receive(0, np.zeros(0, np.uint8)), 0)
    assert bench.told() is not None
    bench.host.halt()
    assert (bench.host.stats()["damaged"], bench.host.stats()["spoiled"]) == (3, 1)


# ---- both ------------------------------------------------------------------------------------------------------------


def test_who_asks_for_the_wrong_end_is_told(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="halted"):
        bench.host.send(0, contents(1))
    bench.configure(source=True)
    with pytest.raises(RuntimeError, match="this host is the stream's source"):
        bench.host.receive(0, contents(1))
    with pytest.raises(ValueError, match="no such stream"):
        bench.host.send(1, contents(1))
    bench.configure(source=False)
    with pytest.raises(RuntimeError, match="not the stream's source"):
        bench.host.send(0, contents(1))
    somewhere = ("127.0.0.1", 1)
    with pytest.raises(ValueError, match="impossible place"):
        bench.host.configure("127.0.0.1", 0, JOB, EPOCH, RANK, SENDER, [(0, 8, [], [somewhere])], ELEMENTS, CHECK)
    for receivers, ends in (([], []), ([0, 1], [somewhere])):
        with pytest.raises(ValueError, match="an end for each receiver"):
            bench.host.configure(*somewhere, JOB, EPOCH, RANK, SENDER, [(0, 8, receivers, ends)], ELEMENTS, CHECK)


def test_a_new_place_is_a_new_world(bench: Bench) -> None:
    bench.configure(source=True)
    for _ in range(2):
        bench.host.send(0, contents(SLOTS + 1))
        bench.gets(list(range(SLOTS)))
        bench.configure(source=True)


def test_what_is_done_is_let_go_when_something_else_begins(bench: Bench) -> None:
    bench.configure(source=True)
    values = contents(2)
    alive, ticket = weakref.ref(values), bench.host.send(0, values)
    del values
    bench.gets([0, 1])
    assert alive() is not None, "the engine does not know yet that it is free"
    later = contents(SLOTS)
    bench.host.send(0, later)
    assert alive() is None
    assert bench.host.wait(ticket, 0), "it may be asked about all the same"
    bench.host.send(0, contents(1))
    still = weakref.ref(later)
    del later
    assert still() is not None, "its last chunks wait for the receivers"


def test_a_stream_that_stops_arriving_holds_nobody_up(bench: Bench) -> None:
    """Its source may be waiting for this host's."""
    ends = [each.getsockname() for each in bench.others]
    streams = [(FIRST_SLOT, SLOTS, RECEIVERS, ends), (FIRST_SLOT + SLOTS, SLOTS, [], ends[:1])]
    bench.host.configure(*bench.switch.getsockname(), JOB, EPOCH, RANK, SENDER, streams, ELEMENTS, CHECK)
    bench.host.receive(1, np.zeros(40 * BYTES, np.uint8))
    bench.send(chunk_of_another_stream(0))
    ticket = bench.host.send(0, contents(40))
    for position in range(40):
        while (sent := bench.got()) is not None and sent.header.operation != constants.OPERATION_CHUNK:
            pass  # It asks for what does not come.
        assert sent is not None and sent.position == position
        for rank in RECEIVERS:
            bench.acknowledge(rank, position + 1)
    assert bench.host.wait(ticket, SOON_S)


def chunk_of_another_stream(position: int) -> bytes:
    fields = {"job": JOB, "epoch": EPOCH, "slot": FIRST_SLOT + SLOTS + position, "element_count": ELEMENTS}
    header = Header(operation=constants.OPERATION_CHUNK, rank=RANK, **fields)
    words = np.frombuffer(content(position), ">i4").astype(np.int32)
    return replace(header, check=WORDS.word(header, words)).pack() + content(position)
