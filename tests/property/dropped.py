"""Drops engines in the middle of their work; started by test_lifetimes.py.

python -m tests.property.dropped engine|source|receiver TIMES. The arrays are so large that their memory goes back to the
system when they are freed: a thread that still works on them ends the process.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hostlib._engine import Engine, Multicaster
from hostlib.protocol import constants
from hostlib.protocol.header import Header
from tests.checks import checks, engine_checks

ELEMENTS, SLOTS, JOB, EPOCH, RANK = 256, 64, 1, 1, 0
ARRAY_BYTES = 64 << 20
PACKETS = 100  # that the switch has seen before an engine is dropped
WORDS, CHECK = checks(1, ELEMENTS), engine_checks(1, ELEMENTS)
NO_WORDS = np.zeros(ELEMENTS, np.int32)


class Switch:
    """Answers every packet of one host."""

    def __init__(self, answer: Callable[[Header, bytes], list[bytes]]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.seen, self._answer = 0, answer
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            data, host = self.socket.recvfrom(65535)
            self.seen += 1
            for packet in self._answer(Header.unpack(data), data):
                self.socket.sendto(packet, host)

    def wait_for(self, packets: int) -> None:
        wanted = self.seen + packets
        while self.seen < wanted:
            time.sleep(0.001)


def stream_packet(operation: int, position: int, words: np.ndarray) -> bytes:
    """One of a multicast stream's packets, whose check word is right."""
    place = {"generation": position // SLOTS, "slot": position % SLOTS}
    header = Header(operation=operation, job=JOB, rank=RANK, epoch=EPOCH, element_count=len(words), **place)
    return replace(header, check=WORDS.word(header, words)).pack() + words.astype(">i4").tobytes()


def result(_header: Header, data: bytes) -> list[bytes]:
    """The only rank's contribution is the sum."""
    packet = bytearray(data)
    packet[3] = constants.OPERATION_RESULT
    return [bytes(packet)]


def leave(header: Header, _data: bytes) -> list[bytes]:
    """A receiver that has all chunks up to this one."""
    low = header.generation * SLOTS + header.slot + 1
    return [stream_packet(constants.OPERATION_ACKNOWLEDGEMENT, 0, np.array([RANK, 0, low], np.int32))]


def chunks(header: Header, data: bytes) -> list[bytes]:
    """What a receiver that has told how far it is may be sent."""
    low = int.from_bytes(data[constants.HEADER_BYTES + 8 : constants.HEADER_BYTES + 12], "big")
    return [stream_packet(constants.OPERATION_CHUNK, position, NO_WORDS) for position in range(low, low + SLOTS)]


def drop_engine(switch: Switch) -> None:
    engine = Engine("127.0.0.1")
    engine.configure(*switch.socket.getsockname(), JOB, EPOCH, RANK, 1, [(0, SLOTS)], ELEMENTS, CHECK)
    engine.submit(np.ones(ARRAY_BYTES // 4, np.float32))
    switch.wait_for(PACKETS)


def drop_multicaster(switch: Switch, source: bool) -> None:
    host = Multicaster("127.0.0.1")
    streams = [(0, SLOTS, [RANK] if source else [], [switch.socket.getsockname()])]  # The other one, too.
    host.configure(*switch.socket.getsockname(), JOB, EPOCH, RANK, RANK, streams, ELEMENTS, CHECK)
    (host.send if source else host.receive)(0, np.ones(ARRAY_BYTES, np.uint8))
    switch.wait_for(PACKETS if source else 10)


DROPS: dict[str, tuple[Callable[[Header, bytes], list[bytes]], Callable[[Switch], None]]] = {
    "engine": (result, drop_engine),
    "source": (leave, lambda switch: drop_multicaster(switch, source=True)),
    "receiver": (chunks, lambda switch: drop_multicaster(switch, source=False)),
}


if __name__ == "__main__":
    answer, drop = DROPS[sys.argv[1]]
    switch = Switch(answer)
    for _ in range(int(sys.argv[2])):
        drop(switch)
