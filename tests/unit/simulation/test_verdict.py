"""What `simulation run` says below its table."""

from __future__ import annotations

import pytest

from simulation.experiments.single_iteration import SimulatedIteration
from simulation.experiments.verdict import verdict


def took(**seconds: float) -> dict[str, SimulatedIteration]:
    return {name.replace("_", "+"): SimulatedIteration(s, {}, 0, 0.0) for name, s in seconds.items()}


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (
            took(ring=3.0, tree=4.0, inagg=5.0, inagg_mcast=2.0),
            "inagg+mcast is 1.50 times as fast as ring, the best host mechanism.",
        ),
        (
            took(ring=2.0, inagg=5.0),
            "The fabric does not help: ring, a host mechanism, is 2.50 times as fast as inagg.",
        ),
        (took(ring=2.0, inagg=2.001), "inagg and ring, the best host mechanism, take the same time."),
        (took(ring=2.0, tree=3.0), None),
        (took(inagg=2.0), None),
    ],
)
def test_the_best_of_both_kinds_are_compared(results: dict[str, SimulatedIteration], sentence: str | None) -> None:
    assert verdict(results) == sentence
