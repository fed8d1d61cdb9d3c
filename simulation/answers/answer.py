"""The answer to an operator's question: mechanisms compared on one model and network, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from hostlib.errors import HostlibError
from simulation.answers import break_even as at
from simulation.answers import perturbation, what_if
from simulation.answers.perturbation import Interval
from simulation.answers.setup import Setup
from simulation.answers.stand_in import extrapolated, smaller, takes_long
from simulation.errors import SimulationError
from simulation.experiments.cost import require_playable
from simulation.experiments.scenario import Scenario, median, slowest_s
from simulation.experiments.single_iteration import SimulatedIteration
from simulation.experiments.verdict import compared
from simulation.predictors.calibration import Calibration
from simulation.simulator.in_threads import in_threads

# Events: what is played besides each mechanism's time takes a second or two on one core.
PLAYED_EVENTS = 8_000_000  # for intervals, of all mechanisms together
PROBED_EVENTS = 1_500_000  # of one mechanism's play; a smaller network stands for one that takes more
CHEAP_EVENTS = 300_000
CONTENDERS, CONTENDS = 3, 1.5  # mechanisms of a kind whose break-even is looked for, within this factor of the best
PAYS = 1.005  # times as fast, from which help may pay
NO_TIME_S = 1e-12

Result = TypeVar("Result")
Assumptions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism.

    Attributes:
        uses_fabric: switches sum or multicast.
        iteration_ms: the simulated time of an iteration; low_ms, high_ms: from the 5th to the 95th percentile of what
            it may be.
        speedup: the best host mechanism's time over this one; None if no host mechanism is compared.
        compute_ms: forward and backward pass of one worker; exposed_ms: what communication adds to it.
        limited_by: the resource whose improvement would gain most.
    """

    mechanism: str
    uses_fabric: bool
    iteration_ms: float
    low_ms: float
    high_ms: float
    speedup: float | None
    compute_ms: float
    exposed_ms: float
    limited_by: str

    @property
    def interval(self) -> Interval:
        return Interval(self.low_ms, self.high_ms)


@dataclass(frozen=True, slots=True)
class Answer:
    """Mechanisms compared on one model and network.

    Attributes:
        text: the answer in a sentence.
        unresolved: the mechanisms that are compared differ by less than their intervals: the best that uses the fabric
            and the best of the hosts or, without one of these kinds, the two fastest.
        best: the fastest mechanism.
        assumptions: name -> {"value", "source"}.
        rows: fastest first.
        left_out: mechanism -> why it cannot be played in this cell.
        iterations: the plain results, by mechanism.
    """

    text: str
    unresolved: bool
    best: str
    assumptions: Assumptions
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    iterations: Mapping[str, SimulatedIteration] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The JSON that `netfold ask` prints with `--json`."""
        return {
            "answer": self.text,
            "unresolved": self.unresolved,
            "best": self.best,
            "assumptions": {name: dict(each) for name, each in self.assumptions.items()},
            "rows": [asdict(row) for row in self.rows],
        }

    def rank(self, row: Row) -> tuple[int, int]:
        """From which to which rank a row is: 1 is the fastest. Overlapping intervals share ranks."""
        faster = sum(other.high_ms < row.low_ms for other in self.rows)
        slower = sum(other.low_ms > row.high_ms for other in self.rows)
        return faster + 1, len(self.rows) - slower


@dataclass(frozen=True, slots=True)
class _Played:
    """A mechanism's results, and what to play of it again.

    Attributes:
        setup_s: the setup's time, which has no jitter and may be of fewer workers.
    """

    scenario: Scenario
    result: SimulatedIteration
    setup: Setup
    setup_s: float
    events: int
    row: Row


def answer(
    scenarios: Sequence[Scenario],
    assumptions: Assumptions,
    tflops: float | None = None,
    seed: int = 1,
    advance: Callable[[], None] = lambda: None,
    longest_s: float = math.inf,
    with_break_even: bool = True,
    calibration: Calibration | None = None,
) -> Answer:
    """Simulate scenarios that differ in their mechanisms, and compare them.

    Args:
        tflops: computing speed of a worker, in TFLOP/s; None if unknown.
        seed: of the perturbations.
        advance: called after each scenario.
        longest_s: a scenario whose play is estimated to take longer is extrapolated from smaller networks.
        with_break_even: the sentence says where the fabric's help ceases or begins to pay, which takes many plays.
        calibration: intervals follow from it; None: from what the simulator is assumed not to know.

    Raises:
        SimulationError, HostlibError: none of them can be played; with the reason of the first. If some cannot, they are
            left out.
    """
    left_out: dict[str, str] = {}
    errors: list[Exception] = []

    def leave_out(scenario: Scenario, error: Exception) -> None:
        left_out[scenario.mechanism] = str(error)
        errors.append(error)

    setups: list[tuple[Scenario, Setup]] = []
    for scenario in scenarios:
        try:
            setups.append((scenario, _checked(scenario, longest_s)))
        except (SimulationError, HostlibError) as error:
            leave_out(scenario, error)

    def simulated(scenario: Scenario) -> tuple[SimulatedIteration, float] | Exception:
        try:
            return _simulated(scenario, longest_s)
        except (SimulationError, HostlibError) as error:
            return error
        finally:
            advance()

    played = []
    for each, result in zip(setups, in_threads(simulated, [scenario for scenario, _ in setups]), strict=True):
        if isinstance(result, Exception):
            leave_out(each[0], result)
        else:
            played.append((*each, *result))
    if not played:
        raise errors[0]
    plays = 0 if calibration else _plays([result.events for _, _, result, _ in played])
    probed = in_threads(lambda each: _probe(*each, plays, seed, longest_s), played)
    if calibration is not None:
        probed = [replace(each, row=_calibrated(each.row, calibration)) for each in probed]
    probed.sort(key=lambda one: one.result.iteration_s)
    hosts_s = min((each.result.iteration_s for each in probed if not each.row.uses_fabric), default=None)
    rows = tuple(replace(each.row, speedup=_over(hosts_s, each.result.iteration_s)) for each in probed)
    text, unresolved = _sentence(rows, probed, tflops, with_break_even)
    iterations = {each.scenario.mechanism: each.result for each in probed}
    return Answer(text, unresolved, rows[0].mechanism, assumptions, rows, left_out, iterations)


def _checked(scenario: Scenario, longest_s: float) -> Setup:
    """What is played of a scenario, if it would end."""
    if not takes_long(scenario, longest_s):
        require_playable(scenario)
    return Setup.of(scenario)


def _simulated(scenario: Scenario, longest_s: float) -> tuple[SimulatedIteration, float]:
    """A scenario's results, and the standard deviation of its plays' times over their median."""
    if takes_long(scenario, longest_s):
        return extrapolated(scenario)
    plays = scenario.plays()
    result = SimulatedIteration.of(median(plays), scenario.rounds)
    times = np.array([slowest_s(each) for each in plays])
    return result, float(times.std()) / result.iteration_s if result.iteration_s else 0.0


def _calibrated(row: Row, calibration: Calibration) -> Row:
    low_ms, high_ms = calibration.interval(row.mechanism, row.iteration_ms)
    return replace(row, low_ms=low_ms, high_ms=high_ms)


def _plays(events: Sequence[int]) -> int:
    """How many perturbed plays of each mechanism may be made; 0 if too few for an interval."""
    count = min(perturbation.PLAYS, PLAYED_EVENTS // max(1, sum(events)))
    return count if count >= perturbation.FEWEST_PLAYS else 0


def _over(hosts_s: float | None, iteration_s: float) -> float | None:
    if hosts_s is None:
        return None
    return hosts_s / iteration_s if iteration_s else 1.0


def _probe(
    scenario: Scenario,
    setup: Setup,
    result: SimulatedIteration,
    deviation: float,
    plays: int,
    seed: int,
    longest_s: float,
) -> _Played:
    """A mechanism's interval, and what limits it.

    Args:
        deviation: of the plays whose median the result is.
        plays: for the interval, if it is not to be propagated.
        longest_s: see answer.
    """
    iteration_s, compute_s = result.iteration_s, setup.compute_s
    interval, limit, events = Interval(iteration_s, iteration_s), "computing" if compute_s else "nothing", 0
    setup_s = iteration_s
    if (scenario.workers == 1 and scenario.gpus_per_host == 1) or iteration_s <= NO_TIME_S:
        if iteration_s > NO_TIME_S:
            interval = perturbation.propagated_interval(setup, iteration_s, {"compute": 1.0}, 0.0, 0.0, seed)
    else:
        if result.workers_per_played > 1:  # The schedules that were compiled for the result serve again.
            setup = replace(setup, job=replace(setup.job, reduce=None))
        probe = _probeable(scenario, setup, result, longest_s)
        base = probe.play()
        base_s, events = slowest_s(base), base.events
        found = what_if.elasticities(probe, base_s)
        limit = what_if.limited_by(found, probe, base, events <= CHEAP_EVENTS)
        if plays and result.workers_per_played == 1 and not takes_long(scenario, longest_s):
            interval = perturbation.played_interval(setup, iteration_s, seed, plays)
        else:
            # Mechanisms with few messages play many events for each of them.
            costs = 0.0 if events > CHEAP_EVENTS else (probe.host_costs(1000).played_s() / base_s - 1) / 1000
            interval = perturbation.propagated_interval(setup, iteration_s, found, max(0.0, costs), deviation, seed)
        setup, setup_s = probe, base_s
    row = Row(
        scenario.mechanism,
        scenario.choice.mechanism.needs_fabric,
        iteration_s * 1e3,
        interval.low * 1e3,
        interval.high * 1e3,
        None,
        compute_s * 1e3,
        max(0.0, iteration_s - compute_s) * 1e3,
        limit,
    )
    return _Played(scenario, result, setup, setup_s, events, row)


def _probeable(scenario: Scenario, setup: Setup, result: SimulatedIteration, longest_s: float) -> Setup:
    """What stands for a cell where it is played again and again: the cell or, if a play takes long, a smaller one."""
    few = PROBED_EVENTS if result.workers_per_played > 1 or setup.has_uplinks else 4 * PROBED_EVENTS
    if scenario.network.topology is not None:
        return setup
    return smaller(scenario) if result.events > few or takes_long(scenario, longest_s) else setup


# ---- the sentence --------------------------------------------------------------------------------------------------


def _sentence(
    rows: Sequence[Row], played: Sequence[_Played], tflops: float | None, with_break_even: bool
) -> tuple[str, bool]:
    """The answer, and whether what it compares is unresolved."""
    first = {uses: next((row for row in rows if row.uses_fabric is uses), None) for uses in (True, False)}
    fabric, host = first[True], first[False]
    if rows[0].exposed_ms == 0 and all(row.iteration_ms == rows[0].iteration_ms for row in rows):
        return _all_alike(rows), len(rows) > 1
    exposed = _exposed(rows[0], played[0].scenario)
    if fabric is None or host is None:
        unresolved = len(rows) > 1 and rows[0].interval.overlaps(rows[1].interval)
        return f"{_fastest(rows, unresolved)}; {exposed}.", unresolved
    unresolved = fabric.interval.overlaps(host.interval)
    times = host.iteration_ms / fabric.iteration_ms
    why = "differ by less than their intervals" if unresolved else ""
    parts = [compared(fabric.mechanism, host.mechanism, times, unresolved=why), exposed]
    if with_break_even and (sentence := _break_even(fabric, host, played, tflops)):
        parts.append(sentence)
    text = "; ".join(parts)
    return f"{text[0].upper() if text.startswith('the ') else text[0]}{text[1:]}.", unresolved


def _all_alike(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return f"{rows[0].mechanism} takes {rows[0].iteration_ms:.1f} ms; no communication is exposed."
    return f"All mechanisms take the same {rows[0].iteration_ms:.1f} ms; no communication is exposed."


def _fastest(rows: Sequence[Row], unresolved: bool) -> str:
    if len(rows) == 1:
        return f"{rows[0].mechanism} takes {rows[0].iteration_ms:.1f} ms"
    if unresolved:
        return f"{rows[0].mechanism} and {rows[1].mechanism}, the two fastest, differ by less than their intervals"
    times = rows[1].iteration_ms / rows[0].iteration_ms
    return f"{rows[0].mechanism} is {times:.2f} times as fast as {rows[1].mechanism}, the next"


def _exposed(row: Row, scenario: Scenario) -> str:
    """What communication adds to the fastest; waiting for slower workers, or for other stages, is part of it."""
    if not row.compute_ms:
        what = scenario.subject.collective.words
        return f"{'an' if what[0] in 'aeiou' else 'a'} {what} takes {row.iteration_ms:.3g} ms"
    share, what = row.exposed_ms / row.iteration_ms, "communication"
    if scenario.choice.strategy.stages > 1:
        what += ", or waiting for other stages"
    elif not scenario.variation.is_none:
        what += ", or waiting for slower workers"
    if share < 0.005:
        return "no communication is exposed"
    return f"{100 * share:.0f} % of its iteration is exposed {what}"


def _break_even(fabric: Row, host: Row, played: Sequence[_Played], tflops: float | None) -> str | None:
    """Where help from the fabric ceases or begins to pay; None where nothing is known."""
    contenders = {
        uses: [
            each
            for each in played
            if each.row.uses_fabric is uses and each.row.iteration_ms <= CONTENDS * best.iteration_ms
        ][:CONTENDERS]
        for uses, best in ((True, fabric), (False, host))
    }
    both = [*contenders[True], *contenders[False]]
    # Help pays where the intervals, which are about as wide elsewhere, would not overlap.
    margin = max(PAYS, fabric.high_ms / fabric.iteration_ms * host.iteration_ms / host.low_ms)
    if len({each.setup.job.workers for each in both}) > 1:
        small = [(each, smaller(each.scenario)) for each in both]
        stand_ins = [(each, setup, setup.played_s()) for each, setup in small]
    elif all(each.events for each in both) and sum(each.events for each in both) <= PROBED_EVENTS:
        stand_ins = [(each, each.setup, each.setup_s) for each in both]
    else:
        return None
    kinds: dict[bool, list[at.Corrected]] = {True: [], False: []}
    for each, setup, setup_s in stand_ins:
        kinds[each.row.uses_fabric].append(at.Corrected.to(each.result.iteration_s, setup, setup_s))
    found = at.break_even(kinds[True], kinds[False], margin)
    places = []
    below, above = ("below", "above") if found.pays else ("above", "below")
    if found.compute is not None:
        places.append(f"{below} {_speed(found.compute, tflops)}")
    if found.bandwidth is not None:
        rate_bits_s = played[0].scenario.network.bandwidth_bits_s
        places.append(f"{above} {_gbit(found.bandwidth * rate_bits_s)}")
    if not places:
        return None
    return f"{'it stops paying' if found.pays else 'it would pay'} {' or '.join(places)}"


def _speed(factor: float, tflops: float | None) -> str:
    return f"{factor:.2g} times this computing speed" if tflops is None else f"{_plain(factor * tflops)} TFLOP/s"


def _gbit(rate_bits_s: float) -> str:
    return f"{_plain(rate_bits_s / 1e9)} Gbit/s"


def _plain(value: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{value:.2g}'):,.10g}"
