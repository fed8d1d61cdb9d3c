"""A packet that comes back from the fabric: what counts as one, and what becomes of packets that come meanwhile."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from hostlib._engine import Engine, Multicaster, Server
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol import constants
from hostlib.protocol.check_words import check_words
from hostlib.protocol.header import Header
from tests.packet_sizes import elements

HERE, ELEMENTS, WAIT_S = "127.0.0.1", elements(64), 5.0
NUMBER = 0xBEEF
Answer = Callable[[socket.socket, bytes, tuple[str, int]], None]


def question() -> bytes:
    return Header(
        operation=constants.OPERATION_NACK, rank=3, slot=0xFFFF, element_count=ELEMENTS
    ).pack() + secrets.token_bytes(4 * ELEMENTS)


def numbered(packet: bytes, number: int = NUMBER) -> bytes:
    """The packet with another rank."""
    at = Header(rank=0xFFFF).pack().index(b"\xff\xff")
    return packet[:at] + number.to_bytes(2, "big") + packet[at + 2 :]


@contextmanager
def fabric(answer: Answer) -> Iterator[tuple[str, int]]:
    """Somebody who gets packets, in the place of a switch."""
    ended = threading.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind((HERE, 0))
        here.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                try:
                    packet, source = here.recvfrom(1 << 16)
                except TimeoutError:
                    continue
                answer(here, packet, source)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield here.getsockname()
        finally:
            ended.set()
            thread.join()


def echo(here: socket.socket, packet: bytes, source: tuple[str, int]) -> None:
    here.sendto(numbered(packet), source)


def test_every_kind_of_socket_has_its_echo() -> None:
    engine, server, multicaster = Engine(HERE, [0, 0]), Server(HERE), Multicaster(HERE)
    with fabric(echo) as where:
        assert [engine.echo(lane, *where, question(), WAIT_S) for lane in range(2)] == [NUMBER] * 2
        assert server.echo(*where, question(), WAIT_S) == multicaster.echo(*where, question(), WAIT_S) == NUMBER


def test_what_is_no_echo_is_none() -> None:
    def damaged(here: socket.socket, packet: bytes, source: tuple[str, int]) -> None:
        right = numbered(packet)
        for at in (0, 8, 20, len(right) - 1):
            here.sendto(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :], source)
        here.sendto(right[:-1], source)
        here.sendto(right + b"x", source)
        here.sendto(b"", source)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(right, source)

    with fabric(damaged) as where:
        assert Engine(HERE).echo(0, *where, question(), 0.3) is None


def test_nobody_there_is_no_error_and_takes_no_longer_than_asked() -> None:
    with fabric(lambda *_: None) as where:
        began = time.monotonic()
        assert Engine(HERE).echo(0, *where, question(), 0.2) is None
        assert 0.19 < time.monotonic() - began < 2.0
    assert Engine(HERE).echo(0, *where, question(), 0.1) is None, "nor where the system refuses it"


def test_an_echo_that_comes_late_answers_the_next_question() -> None:
    asked: list[bytes] = []

    def late(here: socket.socket, packet: bytes, source: tuple[str, int]) -> None:
        if asked:
            here.sendto(numbered(asked[0]), source)
        asked.append(packet)

    engine, same = Engine(HERE), question()
    with fabric(late) as where:
        assert engine.echo(0, *where, same, 0.05) is None
        assert engine.echo(0, *where, same, WAIT_S) == NUMBER


def test_an_engine_asks_a_new_fabric_when_it_has_left_the_last_one() -> None:
    """After a failure: what is under way is halted, and the socket is connected to a switch that is gone."""
    words = for_engine(check_words("00" * 16, 2, ELEMENTS))
    engine = Engine(HERE)
    with fabric(lambda *_: None) as gone:
        engine.configure(*gone, job=1, epoch=2, rank=0, world_size=2, pools=[(0, 8)], elements=ELEMENTS, check=words)
        engine.submit(np.ones(3 * ELEMENTS, np.float32))
        with fabric(echo) as where:
            with pytest.raises(RuntimeError, match="halt\\(\\) comes first"):
                engine.echo(0, *where, question(), WAIT_S)
            engine.halt()
            assert engine.echo(0, *where, question(), WAIT_S) == NUMBER
            assert [ticket for ticket, _ in engine.unfinished()] == [1], "and nothing else has changed"


@pytest.mark.parametrize("bad", [b"", b"short"])
def test_what_cannot_be_asked_is_refused(bad: bytes) -> None:
    engine = Engine(HERE)
    with pytest.raises(ValueError, match="no shorter than its header"):
        engine.echo(0, HERE, 9, bad, 1.0)
    with pytest.raises(ValueError, match="there is no lane 1"):
        engine.echo(1, HERE, 9, question(), 1.0)
    with pytest.raises(ValueError, match="timeout"):
        engine.echo(0, HERE, 9, question(), 0.0)
    with pytest.raises(ValueError, match="not an IPv4 address"):
        engine.echo(0, "nowhere", 9, question(), 1.0)


def test_chunks_that_come_before_the_echo_are_not_lost() -> None:
    """Another rank is ahead: its chunks come while this one waits for its echo."""
    words = for_engine(check_words("00" * 16, 1, ELEMENTS))
    source, receiver = Multicaster(HERE), Multicaster(HERE)
    pool = (0, 8)
    sent = np.arange(8 * ELEMENTS, dtype=np.int32)
    held: list[bytes] = []

    def switch(here: socket.socket, packet: bytes, came: tuple[str, int]) -> None:
        header = Header.unpack(packet)
        to = (HERE, receiver.port)
        if header.operation == constants.OPERATION_CHUNK:
            held.append(packet)
            here.sendto(packet, to)
        elif header.slot == 0xFFFF:
            give_up = time.monotonic() + WAIT_S
            while len(held) < 8 and time.monotonic() < give_up:
                extra, _ = here.recvfrom(1 << 16)
                switch(here, extra, came)
            stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with stranger:
                stranger.sendto(held[0], to)
            here.sendto(numbered(packet), to)

    with fabric(switch) as where:
        common = {"job": 1, "epoch": 2, "elements": ELEMENTS, "check": words}
        source.configure(*where, rank=0, sends_as=0, streams=[(*pool, [1], [(HERE, receiver.port)])], **common)
        ticket = source.send(0, sent.view(np.uint8))
        assert receiver.echo(*where, question(), WAIT_S) == NUMBER
        receiver.configure(*where, rank=1, sends_as=1, streams=[(*pool, [], [(HERE, source.port)])], **common)
        came = np.zeros_like(sent)
        assert receiver.wait(receiver.receive(0, came.view(np.uint8)), WAIT_S) and source.wait(ticket, WAIT_S)
        assert np.array_equal(came, sent)
        stats = receiver.stats()
        assert stats["retransmits"] == 0 and stats["packets_received"] == 8, "once each, and none of the stranger's"
        source.halt()
        receiver.halt()
