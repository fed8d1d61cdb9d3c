"""Meters of the runtime against time that the test makes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from emulation.switch.compiler.cc import compile_library

# One meter; `passed_us` go by before a packet that takes `amount`.
CODE = """
#include "runtime.h"
static meter_t meter;
void set(const uint64_t *r) { meter_set(&meter, r[0], r[1], r[2], r[3], r[4]); }
uint32_t execute(uint64_t passed_us, uint64_t amount) {
    meter.since_us -= passed_us;
    return meter_execute(&meter, amount, amount);
}
"""
GREEN, YELLOW, RED = range(3)
Meter = Callable[..., Callable[[int, int], int]]


@pytest.fixture(scope="module")
def meter() -> Meter:
    library = ctypes.CDLL(str(compile_library(CODE, (), ("-O0",))))
    library.execute.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def configured(*rates: int) -> Callable[[int, int], int]:
        library.set((ctypes.c_uint64 * 5)(*rates))
        return lambda passed_s, amount: int(library.execute(passed_s * 10**6, amount))

    return configured


def test_two_rates(meter: Meter) -> None:
    """RFC 2698: a token a second, and two; what is red takes nothing."""
    execute = meter(1, 2, 2, 5, 0)
    assert [execute(0, 1) for _ in range(6)] == [GREEN, GREEN, YELLOW, YELLOW, YELLOW, RED]
    assert [execute(1, 1), execute(0, 1), execute(0, 1)] == [GREEN, YELLOW, RED]
    assert [execute(3600, 6), execute(0, 5), execute(0, 1)] == [RED, YELLOW, RED]  # Full, and no fuller.


def test_a_single_rate_with_an_excess_burst(meter: Meter) -> None:
    """RFC 2697: the excess bucket gets what the committed one has no room for."""
    execute = meter(1, 2, 1, 2, 3)
    assert [execute(0, 1) for _ in range(6)] == [GREEN, GREEN, YELLOW, YELLOW, YELLOW, RED]
    assert [execute(2, 1), execute(0, 1), execute(0, 1)] == [GREEN, GREEN, RED]
    assert [execute(3, 1), execute(0, 1), execute(0, 1), execute(0, 1)] == [GREEN, GREEN, YELLOW, RED]
    assert [execute(3600, 4), execute(0, 3), execute(0, 2), execute(0, 1)] == [RED, YELLOW, GREEN, RED]
