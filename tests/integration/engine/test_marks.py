"""Marks of queues (ECN, RFC 3168): packets say that their sender answers to them, and a rank's window does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from hostlib._engine import Engine
from hostlib.system.network_links import set_up, with_tables
from hostlib.system.network_namespace import inside, namespace
from tests.checks import engine_checks
from tests.iproute import ip
from tests.marking_fabric import CE, ECT_0, MarkingFabric

ELEMENTS, SLOTS, WIDE = 256, 128, 64
SOON_S = 20.0
HERE, THERE = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank, and the fabric that answers it."""

    engine: Engine
    fabric: MarkingFabric
    address: str

    def configure(self, window: int, served: bool = False) -> None:
        checks = engine_checks(1, ELEMENTS)
        fabric = (self.address, self.fabric.port)
        servers = [fabric] if served else []
        self.engine.configure(*fabric, 1, 1, 0, 1, [(0, SLOTS)], ELEMENTS, checks, window, servers)

    def answer(self, type_of_service: int) -> dict[str, int]:
        """Answer the next flight; the engine's counters when it has all of it."""
        flight = self.fabric.flight(SOON_S)
        assert flight, "the rank sends something"
        self.fabric.answer(flight, type_of_service)
        give_up = time.monotonic() + SOON_S
        while (counted := self.engine.stats())["packets_received"] < self.fabric.answered:
            assert time.monotonic() < give_up, counted
            time.sleep(0.001)
        return counted

    def until_wide(self) -> dict[str, int]:
        """Answer without marks until many packets may be outstanding."""
        while (counted := self.answer(ECT_0))["window"] < WIDE:
            pass
        return counted


@pytest.fixture(params=["udp", pytest.param("xdp", marks=[pytest.mark.xdp, pytest.mark.root])])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    # Where all of a process is over AF_XDP (tests/xdp_namespace.py), so is its loopback, and it can have no other namespace.
    loopback = request.param == "udp" or os.environ.get("NETFOLD_PATH") == "xdp"
    monkeypatch.setenv("NETFOLD_PATH", request.param)
    if loopback:
        fabric = MarkingFabric("127.0.0.1")
        yield Rank(Engine("127.0.0.1"), fabric, "127.0.0.1")
        fabric.close()
        return
    with namespace("veth") as here, namespace("veth") as there:
        ip("-n", here, "link", "add", "rank", "type", "veth", "peer", "other", "netns", there)
        with_tables(here, lambda kernel: set_up(kernel, "rank", HERE, 24))
        with_tables(there, lambda kernel: set_up(kernel, "other", THERE, 24))
        fabric = inside(there, lambda: MarkingFabric(THERE))
        yield Rank(inside(here, lambda: Engine(HERE)), fabric, THERE)
        fabric.close()


def while_summing(rank: Rank, window: int, do: Callable[[], None], served: bool = False) -> None:
    """Call `do` while the rank has more to send than any test takes."""
    rank.configure(window, served)
    tensor = np.arange(200_000 * ELEMENTS, dtype=np.int32)
    rank.engine.submit(tensor, False)
    try:
        do()
    finally:
        rank.engine.halt()


@pytest.mark.parametrize("served", [False, True], ids=["results of the switch", "results of a server"])
def test_a_mark_cuts_the_window_once_per_round_trip(rank: Rank, served: bool) -> None:
    def marked() -> None:
        for _ in range(100):
            before = rank.until_wide()
            after = rank.answer(CE)
            count = after["marked"] - before["marked"]
            assert count >= 1
            # On a busy machine something was taken for lost, and cut the window as well: once more.
            if count >= 2 and after["retransmits"] == before["retransmits"]:
                assert 0.65 * before["window"] < after["window"] < 0.8 * before["window"], count
                again = rank.answer(CE)
                if again["retransmits"] == before["retransmits"]:
                    assert 0.65 * after["window"] < again["window"] < 0.8 * after["window"]
                    return
        pytest.fail("every flight was taken for lost")

    while_summing(rank, 0, marked, served)
    assert rank.fabric.types == {ECT_0}


def test_a_window_that_is_given_stays(rank: Rank) -> None:
    def marked() -> None:
        while (counted := rank.answer(CE))["window"] < 16:  # until a round trip is known
            pass
        for _ in range(5):
            counted = rank.answer(CE)
            assert counted["window"] == 16
        assert counted["marked"] == rank.fabric.answered

    while_summing(rank, 16, marked)
