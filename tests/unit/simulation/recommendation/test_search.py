"""The search for a plan: what it plays, what it leaves, and what it never recommends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hostlib.errors import HostlibError
from simulation.answers.answer import answer
from simulation.answers.break_even import Corrected
from simulation.answers.setup import Setup
from simulation.answers.stand_in import MOST_PLAYED, extrapolated, takes_long
from simulation.errors import SimulationError
from simulation.experiments.scenario import Scenario
from simulation.models.compute import Compute
from simulation.models.workload_source import model
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.recommendation.changes import Change, Contest, changes, speed_map
from simulation.recommendation.recommendation import change_text, duration
from simulation.recommendation.run_cost import RunCost
from simulation.recommendation.search import Found, SearchSpace, search
from simulation.simulator.network import Network

SUBJECT = model("lenet", Compute(batch=8, tflops=0.01))


def space(
    *mechanisms: str, workers: int = 4, gbit: float = 1.0, strategies: bool = False, pipelines: bool = False
) -> SearchSpace:
    base = Scenario(SUBJECT, mechanisms[0], workers, Network(gbit * 1e9))
    return SearchSpace(base, mechanisms, strategies, pipelines)


def found(*mechanisms: str, workers: int = 4) -> Found:
    return search(space(*mechanisms, workers=workers), {})


def test_the_fastest_is_recommended_with_the_times_of_ask() -> None:
    outcome = found("ring", "inagg+mcast", "ps")
    assert outcome.recommended is not None and outcome.recommended.name == "inagg+mcast"
    of_ask = answer([space("inagg+mcast").base, space("ring").base], {})
    assert outcome.recommended.iteration_ms == of_ask.rows[0].iteration_ms
    assert [each.name for each in outcome.candidates] == ["inagg+mcast", "ring", "ps"]
    assert [each.finalist for each in outcome.candidates] == [True, True, False]  # ps is too slow to be one


def test_what_does_not_fit_is_never_recommended() -> None:
    def need(plan: ParallelPlan) -> int:
        return 10 if plan.mechanism == "inagg+mcast" else 5

    outcome = search(space("ring", "inagg+mcast"), {}, need=need, limit_bytes=9)
    assert outcome.recommended is not None and outcome.recommended.name == "ring"
    assert {each.name: each.fits for each in outcome.candidates} == {"ring": True, "inagg+mcast": False}
    assert all(each.name == "ring" for each in outcome.finalists)


def test_without_a_plan_that_fits_there_is_none() -> None:
    outcome = search(space("ring", "inagg+mcast", pipelines=True), {}, need=lambda plan: 10, limit_bytes=9)
    assert outcome.recommended is None and outcome.answer is None and outcome.finalists == ()
    schedules = {each.plan.schedule for each in outcome.candidates}
    assert PipelineSchedule.ONE_AT_A_TIME in schedules and PipelineSchedule.GPIPE in schedules
    assert any(each.plan.recompute for each in outcome.candidates)


def test_memory_decides_for_a_pipeline() -> None:
    def need(plan: ParallelPlan) -> int:
        return 10 if plan.schedule is None else 5

    outcome = search(space("ring", "inagg+mcast", pipelines=True), {}, need=need, limit_bytes=9)
    assert outcome.recommended is not None and outcome.recommended.plan.schedule is not None
    assert outcome.recommended.fits


def test_a_null_search_has_no_winner() -> None:
    outcome = found("ring", "inagg+mcast", "tree", workers=1)
    assert outcome.recommended is None and outcome.answer is not None and outcome.answer.unresolved


def test_the_plainest_of_plans_as_fast_is_recommended() -> None:
    bare = space("ring", "inagg+mcast", gbit=100_000.0)
    outcome = search(bare, {})
    assert outcome.recommended is not None and outcome.recommended.name == "ring"
    assert [each.name for each in outcome.rivals] == ["inagg+mcast"]


def test_strategies_that_change_nothing_are_left_out() -> None:
    # Of so many examples, sufficient factors are larger than the gradients.
    large = replace(space("ring", strategies=True).base, subject=model("lenet", Compute(batch=4096, tflops=1)))
    outcome = search(SearchSpace(large, ("ring",), strategies=True), {})
    names = {each.name for each in outcome.candidates}
    assert "ring" in names and not any(name.startswith(("bsp", "onebit")) for name in names)
    assert any("does what ring does" in reason for reason in outcome.left_out.values())


def test_buckets_and_slots_are_tried_but_not_asked_for_in_vain() -> None:
    tried = replace(space("ring", "inagg+mcast"), buckets=(1 << 20,), slots=(256,))
    outcome = search(tried, {})
    assert {each.bucket_bytes for each in outcome.candidates} >= {25 << 20, 1 << 20}
    assert outcome.recommended is not None
    assert outcome.recommended.plan.slots is None  # more slots gain nothing


def test_nothing_playable_is_an_error_with_the_reason() -> None:
    with pytest.raises((SimulationError, HostlibError), match="slots are too few"):
        few = space("ring+mcast")
        search(replace(few, base=replace(few.base, semantics=replace(few.base.semantics, slots=1))), {})


def test_a_large_cell_is_extrapolated_about_right(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = space("tree", workers=256).base
    assert not takes_long(cell, 100.0)
    monkeypatch.setattr("simulation.answers.stand_in.cost_of", lambda _: _Dear())
    assert takes_long(cell, 1.0)
    result, deviation = extrapolated(cell)
    assert result.iteration_s == pytest.approx(cell.play().outcomes[0].iteration_s, rel=0.1) and deviation > 0


def test_so_many_workers_that_their_schedule_is_never_made() -> None:
    most = space("ring", workers=MOST_PLAYED).base
    assert not takes_long(most, 100.0)
    more = replace(most, workers=MOST_PLAYED + 1)
    assert takes_long(more, 100.0) and not takes_long(more, math.inf)


class _Dear:
    seconds = played = 1000.0


def test_changes_and_map_hold_together() -> None:
    outcome = found("ring", "inagg+mcast")
    contest = Contest.of(outcome)
    assert contest is not None
    where = {(each.what, each.side): each for each in changes(contest, 1.0)}
    assert all(not each.fabric_pays and each.plan == "ring" for each in where.values())
    above = where["bandwidth", "above"].at
    of = speed_map(contest)
    today = of.places[of.speeds.index(1.0)]
    for rate, place in zip(of.bandwidths_bits_s, today, strict=True):
        if rate < 0.8 * above:
            assert place.pays
        elif rate > 1.2 * above:
            assert not place.pays


def test_one_kind_of_mechanism_has_nothing_to_change() -> None:
    assert Contest.of(found("ring", "tree")) is None


def test_the_cost_of_a_run_is_worked_by_hand() -> None:
    run = RunCost.of((100.0, 90.0, 120.0), examples=1000, batch=8, workers=4, epochs=2, price=3.0)
    assert run.iterations == 2 * 32  # 1000 / 32 = 31.25 iterations, rounded up
    assert (run.seconds, run.low_s, run.high_s) == pytest.approx((6.4, 5.76, 7.68))
    assert run.gpu_hours == pytest.approx(6.4 * 4 / 3600) and run.cost == pytest.approx(3 * 6.4 * 4 / 3600)
    for wrong in ({"examples": 0}, {"epochs": 0}, {"price": -1.0}):
        with pytest.raises(SimulationError):
            RunCost.of((1.0, 1.0, 1.0), **{"examples": 1, "batch": 1, "workers": 1, **wrong})  # type: ignore[arg-type]


def test_changes_read_as_sentences() -> None:
    change = Change("bandwidth", "bit/s", 1e9, 5e9, "above", False, "ring")
    assert change_text(change) == "Above 5 Gbit/s: the fabric's help would no longer pay; the fastest there is ring."
    assert change_text(replace(change, what="workers", at=8, fabric_pays=True)) == (
        "From 8 workers on: the fabric would pay; the fastest there is ring."
    )
    assert [duration(each) for each in (9.5, 75, 5400, 200000)] == ["9.5 s", "1 min 15 s", "1 h 30 min", "2.3 days"]


def test_where_nothing_takes_a_fixed_time_only_the_ratio_of_speeds_counts() -> None:
    cell = space("ring").base
    setup = Setup.of(cell)
    assert setup.is_proportional
    slow = replace(cell, network=replace(cell.network, latency_ns=10_000))
    assert not Setup.of(slow).is_proportional
    stand_in = Corrected(setup, 1.0)
    for compute, bandwidth in ((2.0, 2.0), (0.5, 4.0), (8.0, 0.1)):
        other = setup.computing(1 / compute).rates(bandwidth, bandwidth)
        assert stand_in.played_s(compute, bandwidth) == pytest.approx(other.played_s(), rel=1e-5)


def test_a_pipeline_of_many_workers_is_compared_on_smaller_networks() -> None:
    """Any number of workers can be halved so that pipelines stay whole."""
    cell = space("1f1b:stages=2:microbatches=2/inagg+mcast", workers=1000).base
    found, plain = answer([cell], {}, longest_s=0.3).rows[0], answer([replace(cell, workers=8)], {}).rows[0]
    assert found.iteration_ms == pytest.approx(plain.iteration_ms, rel=0.05)
    assert found.low_ms < found.iteration_ms < found.high_ms


def test_a_strategy_that_leaves_all_to_the_mechanism_is_left_out() -> None:
    """With few workers, hybcomm broadcasts this model's factors; with 256, that costs more than a ring."""
    few, many = (space("ring", workers=workers, strategies=True) for workers in (4, 256))
    assert "hybcomm/ring" in {each.name for each in search(few, {}).candidates}
    assert "does what ring does" in search(many, {}).left_out["hybcomm/ring"]
