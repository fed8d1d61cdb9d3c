"""NETFOLD_BUSY_POLL: a thread that waits for packets looks for them before it sleeps."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import numpy as np
import pytest

from hostlib._engine import Engine, Multicaster, Reflector, Scatter, Server, Stalled
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol.check_words import check_words
from tests.packet_sizes import elements
from tests.thread_sleeps import threads, times_asleep

HERE, ELEMENTS, SOON_S = "127.0.0.1", elements(64), 30.0
SILENT_S = 0.5  # for which an engine waits for a switch that says nothing


def engine_to(port: int) -> tuple[Engine, int]:
    """An engine, and the kernel's number of its thread."""
    before = threads()
    engine = Engine(HERE)
    (thread,) = threads() - before
    engine.configure(HERE, port, 1, 1, 0, 1, [(0, 128)], ELEMENTS, for_engine(check_words(16 * "00", 1, ELEMENTS)))
    return engine, thread


def slept_while_silent() -> int:
    """How often an engine's thread slept while nobody answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind((HERE, 0))
        engine, thread = engine_to(nobody.getsockname()[1])
        before = times_asleep([thread])
        with pytest.raises(Stalled):
            engine.allreduce(np.zeros(ELEMENTS, np.int32), False, SILENT_S)
        slept = times_asleep([thread]) - before
        engine.halt()
    return slept


@pytest.mark.parametrize("busy_us", ["0", "50", "1000000"])
def test_sums_are_right(busy_us: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_BUSY_POLL", busy_us)
    reflector = Reflector(HERE)
    engine, _ = engine_to(reflector.port)
    for size in (1, ELEMENTS, 300 * ELEMENTS + 1):
        given = np.arange(size, dtype=np.int32)
        summed = given.copy()
        engine.allreduce(summed, False, SOON_S)
        assert np.array_equal(summed, given)
    engine.halt()


def test_a_thread_looks_before_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = slept_while_silent()
    assert slept >= 5, "it sleeps until it has to send again"
    monkeypatch.setenv("NETFOLD_BUSY_POLL", "1000000")
    assert slept_while_silent() < slept / 2


@pytest.mark.parametrize("kind", [Engine, Server, Multicaster, partial(Scatter, rank=0, world_size=2)])
@pytest.mark.parametrize("busy_us", ["", "-1", "1.5", "50us", "1000001", "99999999999999999999"])
def test_what_is_no_time_is_refused(kind: Any, busy_us: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETFOLD_BUSY_POLL", busy_us)
    with pytest.raises(ValueError, match=f"^NETFOLD_BUSY_POLL={busy_us}: it is microseconds, 0 to 1000000$"):
        kind(HERE)
