"""No damaged result is believed: a little of the campaign of damage.py, and all of it."""

from __future__ import annotations

import pytest

from hostlib import _engine
from hostlib.protocol.check_words import CODE_SHIFT, CODES
from tests.chaos.damage import campaign
from tests.property import fabric


@pytest.mark.parametrize(
    "results",
    [4_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.crossed, pytest.mark.timeout(1800)])],
)
def test_of_damage_in_switch_and_network_nothing_is_believed(results: int) -> None:
    outcome = campaign(results, seed=1)
    assert outcome.believed >= results
    assert min(outcome.damage.values()) > results // 100
    assert outcome.refused > 0 and outcome.by_hosts > 0


def test_words_that_show_little_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a prime of 3 one error in three passes: the campaign sees what ranks believe."""

    def weak(ranks: int, elements: int, secret: str) -> _engine.CheckWords:
        codes = [code << CODE_SHIFT for code in range(CODES)]
        return _engine.CheckWords(3, (1, 1, 1, 1), [1] * elements, [1] * ranks, codes)

    monkeypatch.setattr(fabric, "engine_checks", weak)
    with pytest.raises(AssertionError, match="done, but wrong"):
        campaign(4_000, seed=1)
