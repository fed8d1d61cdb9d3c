"""A lane whose link is slow: it sleeps while its socket is full."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from pyroute2 import IPRoute

from hostlib._engine import Scatter
from hostlib.protocol import constants
from hostlib.protocol.constants import HEADER_BYTES
from hostlib.protocol.header import Header
from hostlib.system.network_links import shape, with_tables
from hostlib.system.network_namespace import inside, namespace
from tests.checks import checks, engine_checks, packed
from tests.thread_sleeps import threads, times_asleep

HERE, MTU, RATE_BITS_S, SOON_S = "127.0.0.1", 1500, 1e6, 20.0
ELEMENTS, SLOTS, OWNER, RANK = 256, 64, 0, 1
JOB, EPOCH = 7, 9
POOLS = [(0, SLOTS), (SLOTS, SLOTS)]
WORDS, CHECK = checks(2, ELEMENTS), engine_checks(2, ELEMENTS)


@pytest.fixture
def space() -> Iterator[str]:
    """A namespace whose loopback is as slow as a link."""

    def slow(kernel: IPRoute) -> None:
        kernel.link("set", index=1, mtu=MTU)
        shape(kernel, "lo", RATE_BITS_S, mtu=MTU)

    with namespace("full") as made:
        with_tables(made, slow)
        yield made


def bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((HERE, 0))
    made.settimeout(SOON_S)
    return made


def contribution(switch: socket.socket) -> Header:
    return Header.unpack(switch.recv(1 << 16)[:HEADER_BYTES])


@pytest.mark.root
def test_a_lane_with_a_full_socket_sleeps_until_half_of_it_is_free(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETFOLD_PATH", raising=False)
    before = threads()
    switch, owner, own, scatter = inside(space, lambda: (bound(), bound(), bound(), Scatter(HERE, RANK, 2)))
    with switch, owner, own:
        ends = [
            [owner.getsockname(), (HERE, scatter.ports[OWNER])],
            [own.getsockname(), (HERE, scatter.ports[RANK])],
        ]
        scatter.configure(*switch.getsockname(), JOB, EPOCH, RANK, 2, POOLS, ELEMENTS, CHECK, ends, SLOTS)
        values = np.ones(2 * (SLOTS - 1) * ELEMENTS, np.int32)
        scatter.submit(values, np.zeros(len(values) // 2, np.int32), False)
        prologue = contribution(switch)
        assert prologue.slot == 0
        entry = struct.pack(">IIHH", 0, prologue.next_exponent, 0, 0)
        opens = Header(operation=constants.OPERATION_ACKNOWLEDGEMENT, job=JOB, rank=OWNER, epoch=EPOCH, element_count=1)
        lanes = threads() - before
        slept = times_asleep(lanes)
        owner.sendto(packed(opens, np.frombuffer(entry, ">i4"), WORDS, [OWNER]), ends[OWNER][RANK])
        slots = {contribution(switch).slot for _ in range(SLOTS - 1)}
        slept = times_asleep(lanes) - slept
        scatter.halt()
    assert slots <= set(range(SLOTS)) and len(slots) > SLOTS // 2
    # They take half a second. With a look at the socket every millisecond there are ten times as many.
    assert slept < 2 * SLOTS
