"""A few runs of the campaign, and those that must not be left to chance. No launcher: the ranks start in no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.chaos.player import Player
from tests.chaos.scenario import KINDS, TWO, Blow, Equipment, Scenario, Workload, draw

SEED = 1
CALM = Equipment(256, 0.0)
SMALL = Workload(2, "inagg+mcast", "lenet", 0.05, 16, 16)
# Its buckets take most of a step: a switch that dies leaves one half-way.
LARGE_BUCKETS = Workload(2, "inagg+mcast", "vgg", 2.0, 32, 2)


def killed(*moments: float) -> tuple[Blow, ...]:
    return tuple(Blow("kill-switch", moment, delay_s=0.02, rank=0, lasts_s=None) for moment in moments)


# Ranks that are held up meanwhile let the controller find out and replace the switch without many steps of training;
# after that, enough steps are left for a return, also on a busy machine.
LONG = replace(SMALL, epochs=48)
STALLED = (
    Blow("stop-switch", 0.02, delay_s=0.02, rank=0, lasts_s=None),
    Blow("pause-rank", 0.02, delay_s=2.4, rank=0, lasts_s=2.5),
    Blow("pause-rank", 0.02, delay_s=5.6, rank=1, lasts_s=2.5),
)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    with Player(tmp_path_factory.mktemp("chaos")) as player:
        yield player


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill-rank", "pause-rank", "pause-switch", TWO])
def test_a_run_ends_well_or_says_who_is_missing(kind: str, player: Player) -> None:
    number = [*KINDS, TWO].index(kind)
    outcome = player.play(replace(draw(SEED, number, kind), equipment=CALM, workload=SMALL))
    assert outcome.problems == []


@pytest.mark.parametrize(
    "workload, blows, failures, returns",
    [
        pytest.param(SMALL, killed(0.02, 0.8), 2, 1, id="killed twice", marks=(pytest.mark.slow, pytest.mark.crossed)),
        pytest.param(LARGE_BUCKETS, killed(0.3), 1, 0, id="killed half-way through a bucket"),
        pytest.param(LONG, STALLED, 1, 1, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_weights_do_not_tell_that_the_switch_failed(
    workload: Workload, blows: tuple[Blow, ...], failures: int, returns: int, player: Player
) -> None:
    outcome = player.play(Scenario(SEED, 0, TWO, CALM, workload, blows))
    assert outcome.problems == []
    assert len(outcome.failures) == failures
    assert sum(failure["returned"] for failure in outcome.failures) >= returns
