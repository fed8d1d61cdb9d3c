"""The operator's answer: rows, intervals, what limits, where it stops paying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.answers import answer as answers
from simulation.answers import perturbation
from simulation.answers.answer import Answer, Row, answer
from simulation.answers.perturbation import Interval, played_interval, propagated_interval
from simulation.answers.setup import Setup
from simulation.answers.what_if import elasticities, limited_by
from simulation.errors import NetworkError, SimulationError
from simulation.experiments.scenario import Scenario
from simulation.models.synthetic_trace import model_layers, model_trace
from simulation.models.workload_source import WorkloadSource
from simulation.simulator.network import Network

SUBJECT = WorkloadSource(model_trace("alexnet"), model_layers("alexnet", None), 32, 0)


def scenario(mechanism: str, workers: int = 4, gbit: float = 10, **network: float) -> Scenario:
    return Scenario(SUBJECT, mechanism, workers, Network(gbit * 1e9, **network))  # type: ignore[arg-type]


def asked(*mechanisms: str, workers: int = 4, gbit: float = 10, **network: float) -> Answer:
    return answer([scenario(name, workers, gbit, **network) for name in mechanisms], {})


def test_rows_are_fastest_first_and_hold_together() -> None:
    found = asked("ps", "tree", "inagg+mcast", "ring")
    rows = {row.mechanism: row for row in found.rows}
    times = [row.iteration_ms for row in found.rows]
    assert times == sorted(times) and found.best == found.rows[0].mechanism == "inagg+mcast"
    assert {name for name, row in rows.items() if row.uses_fabric} == {"inagg+mcast"}
    hosts = min(row.iteration_ms for row in found.rows if not row.uses_fabric)
    for row in found.rows:
        assert row.low_ms <= row.iteration_ms <= row.high_ms
        assert row.speedup == pytest.approx(hosts / row.iteration_ms)
        assert row.compute_ms + row.exposed_ms == pytest.approx(row.iteration_ms)
        assert 0.01 < (row.high_ms - row.low_ms) / row.iteration_ms < 0.15
    assert not found.unresolved
    assert found.text.startswith("inagg+mcast is ") and "times as fast as ring, the best host mechanism" in found.text
    assert "it stops paying" in found.text and found.text.endswith(".")


def test_without_a_host_mechanism_there_is_no_speed_up() -> None:
    found = asked("inagg+mcast", "mcast")
    assert [row.speedup for row in found.rows] == [None, None]
    assert "inagg+mcast is " in found.text and ", the next" in found.text


def test_overlapping_intervals_share_a_rank() -> None:
    row = Row("a", False, 10, 9, 11, 1.0, 5, 5, "-")
    rows = (row, replace(row, mechanism="b", iteration_ms=10.5, low_ms=10.2, high_ms=12), replace(row, low_ms=13))
    found = Answer("", False, "a", {}, (*rows[:2], replace(rows[2], high_ms=14)))
    assert [found.rank(each) for each in found.rows] == [(1, 2), (1, 2), (3, 3)]


@pytest.mark.parametrize("name", ["ring", "inagg+mcast", "halving-doubling", "tree"])
def test_a_mechanism_is_never_faster_than_itself(name: str) -> None:
    """Played intervals and propagated ones, each with fifty pairs of seeds."""
    cell = scenario(name, workers=3, gbit=25)
    setup, nominal_s = Setup.of(cell), 0.1
    probe_s = setup.played_s()
    found = elasticities(setup, probe_s)
    resolved = 0
    for seed in range(0, 100, 2):
        one, other = (propagated_interval(setup, nominal_s, found, 0.0, 0.0, seed + n) for n in (0, 1))
        resolved += not one.overlaps(other)
    for seed in range(0, 10, 2):
        one, other = (played_interval(setup, probe_s, seed + n, 6) for n in (0, 1))
        resolved += not one.overlaps(other)
    assert resolved <= 0.05 * 55


def test_two_names_of_one_mechanism_are_unresolved() -> None:
    """200 seeds, of which 95 % must have no winner."""
    cells = [scenario("ring"), scenario("ring:split=yes")]
    setups = [Setup.of(cell) for cell in cells]
    effects = [elasticities(setup, setup.played_s()) for setup in setups]
    nominal_s = [cell.play().outcomes[0].iteration_s for cell in cells]
    winners = 0
    for seed in range(200):
        one, other = (
            propagated_interval(setup, seconds, effect, 0.0, 0.0, seed + number * 1000)
            for number, (setup, seconds, effect) in enumerate(zip(setups, nominal_s, effects, strict=True))
        )
        winners += not one.overlaps(other)
    assert winners <= 10
    found = answer(cells, {})
    assert found.unresolved and "differ by less than their intervals" in found.text
    assert {found.rank(row) for row in found.rows} == {(1, 2)}


def test_the_same_seed_gives_the_same_answer() -> None:
    cells = [scenario("ring"), scenario("inagg+mcast")]
    assert answer(cells, {}, seed=3).rows == answer(cells, {}, seed=3).rows
    assert answer(cells, {}, seed=3).rows != answer(cells, {}, seed=4).rows


def test_both_kinds_of_interval_are_about_as_wide() -> None:
    setup = Setup.of(scenario("ring", gbit=5))
    seconds = setup.played_s()
    played = played_interval(setup, seconds, 1, 16)
    propagated = propagated_interval(setup, seconds, elasticities(setup, seconds), 0.0, 0.0, 1)
    for one, other in ((played.low, propagated.low), (played.high, propagated.high)):
        assert one == pytest.approx(other, rel=0.02)


def test_the_slowest_of_more_workers_is_slower() -> None:
    few, many = (Setup.of(scenario("ring", workers)) for workers in (2, 64))
    assert perturbation.slowest(many, 0.5) > perturbation.slowest(few, 0.5)


@pytest.mark.parametrize(
    ("mechanism", "gbit", "network", "limit"),
    [
        ("ps", 10, {}, "the server's link"),
        ("ring", 10, {}, "the hosts' links"),
        ("ring", 10_000, {}, "computing"),
        ("halving-doubling", 10, {"racks": 2, "oversubscription": 16.0}, "the uplinks"),
        ("inagg+mcast", 10, {"latency_ns": 2_000_000}, "slots"),
    ],
)
def test_what_limits_is_named(mechanism: str, gbit: float, network: dict[str, float], limit: str) -> None:
    cell = scenario(mechanism, 8 if network.get("racks") else 4, gbit, **network)
    setup = Setup.of(cell)
    played = setup.play()
    seconds = played.outcomes[0].iteration_s
    found = limited_by(elasticities(setup, seconds), setup, played, cheap=True)
    assert limit in found
    if limit == "slots":
        assert found.startswith("128 slots (") and found.endswith(" would do)")


def test_break_even_is_where_the_verdict_changes() -> None:
    """Above the bandwidth at which help stops paying, the answer is another one."""
    found = asked("ring", "inagg+mcast", gbit=10)
    assert "it stops paying" in found.text and "above " in found.text
    gbit = float(found.text.split("above ")[-1].split(" Gbit/s")[0].replace(",", ""))
    assert asked("ring", "inagg+mcast", gbit=0.7 * gbit).unresolved is False
    beyond = asked("ring", "inagg+mcast", gbit=1.5 * gbit)
    assert beyond.unresolved and "it would pay" in beyond.text


def test_what_cannot_be_played_is_left_out() -> None:
    found = asked("ring", "ring+mcast", workers=300)
    assert [row.mechanism for row in found.rows] == ["ring"]
    assert found.left_out == {"ring+mcast": "128 slots are too few for 300 streams of chunks"}
    with pytest.raises(NetworkError, match="128 slots are too few for 300 streams"):
        asked("ring+mcast", workers=300)


def test_huge_ones_are_refused_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scenario, "plays", lambda _: pytest.fail("is played"))
    cells = [replace(scenario(name, 4), subject=replace(SUBJECT, message_bytes=1)) for name in ("ring", "tree")]
    cells = [replace(cell, semantics=replace(cell.semantics, bucket_bytes=0)) for cell in cells]
    with pytest.raises(SimulationError, match=r"[\d,]+ messages are more than 1,048,576"):
        answer(cells, {})
    with pytest.raises(SimulationError, match=r"about .* operations would take about .*; fewer --workers"):
        answer([scenario("ring", 20_000, racks=2)], {})


def test_one_worker_takes_what_it_computes() -> None:
    found = asked("ring", "ps", "inagg+mcast", workers=1)
    assert found.unresolved and "no communication is exposed" in found.text
    for row in found.rows:
        assert row.exposed_ms == pytest.approx(0, abs=0.01 * row.compute_ms) and row.limited_by == "computing"


def test_large_cells_are_probed_at_a_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of the cell itself; what limits it is that of a smaller one."""
    cells = [scenario("tree", 96, racks=2)]
    plain = answer(cells, {}).rows[0]
    monkeypatch.setattr(answers, "PROBED_EVENTS", 100)
    probed = answer(cells, {}).rows[0]
    assert (probed.iteration_ms, probed.limited_by) == (plain.iteration_ms, plain.limited_by)
    assert probed.low_ms == pytest.approx(plain.low_ms, rel=0.03)


def test_intervals_overlap_where_they_share_a_time() -> None:
    assert Interval(1, 2).overlaps(Interval(2, 3)) and not Interval(1, 2).overlaps(Interval(2.1, 3))
