"""The sentence that compares the fabric with the hosts, below tables and in reports."""

from __future__ import annotations

import pytest

from simulation.experiments.verdict import compared, times_text


@pytest.mark.parametrize(
    ("times", "unresolved", "took", "sentence"),
    [
        (1.5, "", "", "inagg+mcast is 1.50 times as fast as ring, the best host mechanism"),
        (
            1.5,
            "",
            "(2 ms against 3 ms)",
            "inagg+mcast is 1.50 times as fast as ring, the best host mechanism (2 ms against 3 ms)",
        ),
        (
            0.4,
            "",
            "",
            "the fabric does not help: ring, a host mechanism, is 2.50 times as fast as inagg+mcast, the best that uses "
            "the fabric",
        ),
        (1.001, "take the same time", "", "inagg+mcast and ring, the best host mechanism, take the same time"),
    ],
)
def test_the_best_of_both_kinds_are_compared(times: float, unresolved: str, took: str, sentence: str) -> None:
    assert compared("inagg+mcast", "ring", times, unresolved=unresolved, took=took) == sentence


@pytest.mark.parametrize(("factor", "text"), [(1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")])
def test_factors_have_three_digits(factor: float, text: str) -> None:
    assert times_text(factor) == text
