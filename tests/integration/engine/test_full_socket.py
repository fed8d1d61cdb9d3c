"""A lane whose link is slow: it sleeps while its socket is full."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyroute2 import IPRoute

from hostlib._engine import Scatter
from hostlib.protocol import constants
from hostlib.protocol.constants import HEADER_BYTES
from hostlib.protocol.header import Header
from hostlib.system.network_links import shape, with_tables
from hostlib.system.network_namespace import inside, namespace
from tests.checks import checks, engine_checks

HERE, MTU, RATE_BITS_S, SOON_S = "127.0.0.1", 1500, 1e6, 20.0
ELEMENTS, SLOTS, OWNER, RANK = 256, 64, 0, 1
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


def wake_ups() -> int:
    """Of all threads of this process but the one that asks."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) == threading.get_native_id():
            continue
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        total += int(lines["voluntary_ctxt_switches"])
    return total


def contribution(switch: socket.socket) -> Header:
    return Header.unpack(switch.recv(1 << 16)[:HEADER_BYTES])


@pytest.mark.root
def test_a_lane_with_a_full_socket_sleeps_until_half_of_it_is_free(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NETFOLD_PATH", raising=False)
    switch, owner, own, scatter = inside(space, lambda: (bound(), bound(), bound(), Scatter(HERE, RANK, 2)))
    with switch, owner, own:
        ends = [
            [owner.getsockname(), (HERE, scatter.ports[OWNER])],
            [own.getsockname(), (HERE, scatter.ports[RANK])],
        ]
        scatter.configure(*switch.getsockname(), 7, 9, RANK, 2, POOLS, ELEMENTS, CHECK, ends)
        values = np.ones(2 * (SLOTS - 1) * ELEMENTS, np.int32)
        scatter.submit(values, np.zeros(len(values) // 2, np.int32), False)
        prologue = contribution(switch)
        assert prologue.slot == 0
        entry = struct.pack(">IIHH", 0, prologue.next_exponent, 0, 0)
        words = np.pad(np.frombuffer(entry, ">i4").astype(np.int32), (0, ELEMENTS - 3))
        opens = replace(prologue, operation=constants.OPERATION_ACKNOWLEDGEMENT, rank=OWNER, element_count=1, slot=0)
        opens = replace(opens, exponent=0, next_exponent=0, generation=0, flags=0, check=0)
        before = wake_ups()
        owner.sendto(replace(opens, check=WORDS.word(opens, words, [OWNER])).pack() + entry, ends[OWNER][RANK])
        slots = {contribution(switch).slot for _ in range(SLOTS - 1)}
        woken = wake_ups() - before
        scatter.halt()
    assert slots <= set(range(SLOTS)) and len(slots) > SLOTS // 2
    # They take half a second. With a look at the socket every millisecond there are ten times as many.
    assert woken < 2 * SLOTS
