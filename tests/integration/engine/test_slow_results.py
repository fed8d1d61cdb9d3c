"""Results that come more slowly than before: a server has begun to send much else, or little may be outstanding."""

from __future__ import annotations

import numpy as np
import pytest

from hostlib._engine import Engine
from tests.checks import engine_checks
from tests.marking_fabric import ECT_0, MarkingFabric
from tests.packet_sizes import elements

ELEMENTS, SLOTS, WINDOW = elements(64), 8, 2
SOON_S, FAST_S, SLOW_S = 20.0, 0.0005, 0.06


def test_a_rank_that_has_to_wait_longer_stops_sending_twice() -> None:
    """Nothing that is sent twice can be timed. So a rank that asks too soon would never learn how long it takes now."""
    fabric, engine = MarkingFabric("127.0.0.1"), Engine("127.0.0.1")
    checks = engine_checks(1, ELEMENTS)
    engine.configure("127.0.0.1", fabric.port, 1, 1, 0, 1, [(0, SLOTS)], ELEMENTS, checks, WINDOW)
    engine.submit(np.arange(10_000 * ELEMENTS, dtype=np.int32), False)
    try:
        fabric.quiet_s = FAST_S
        for _ in range(200):
            fabric.answer(fabric.flight(SOON_S), ECT_0)
        fabric.quiet_s, once = SLOW_S, 0
        for _ in range(100):
            before = engine.stats()["retransmits"]
            flight = fabric.flight(SOON_S)
            once = once + 1 if engine.stats()["retransmits"] == before else 0
            if once == 10:
                return
            fabric.answer(flight, ECT_0)
        pytest.fail("every flight has packets that were sent twice")
    finally:
        engine.halt()
        fabric.close()
