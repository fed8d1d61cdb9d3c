"""Search the plans of a cell for the fastest that fits, by successive halving.

Every mechanism is played once, the best with every strategy, the best of these with every bucket size and number of slots.
Only the few best are played as `netfold ask` plays them, with jitter and full intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product

from hostlib.errors import HostlibError
from hostlib.schedules.schedule import worker
from hostlib.strategies.strategy import registered_strategies
from simulation.answers import perturbation
from simulation.answers.answer import NO_TIME_S, Answer, Assumptions, answer
from simulation.answers.setup import Setup
from simulation.answers.stand_in import extrapolated, roughly, smaller, takes_long
from simulation.errors import SimulationError
from simulation.experiments.cost import require_playable
from simulation.experiments.scenario import Scenario
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.predictors.calibration import Calibration
from simulation.recommendation.candidate import Candidate
from simulation.simulator.in_threads import in_threads
from simulation.simulator.play import operations

# Of one play, estimated: smaller networks stand for what takes longer, of finalists and of others.
LONG_S, SEARCHED_S = 0.3, 0.1
SEARCHED_ROUGHNESS = 2  # of a first play, on links that streams share
MOST_OWN = 400_000  # operations of a strategy's own messages; more take seconds to play
SAMPLE, MOST_PLANNED = 32, 256  # workers with whose number they are counted, and planned
ROUGH = 32  # workers of the smaller of the networks that stand for a cell while it is searched
PLAYED_ALL = 500_000  # operations of a play in which workers vary; of more, one worker stands for all if it can
KEPT, TUNED, FINALISTS = 1, 2, 2  # of each kind: mechanisms that are combined, plans that are tuned, and compared
STAGES = (2, 4, 8, 16)
ROUNDS = (4, 1, 2, 8)  # micro-batches of each stage; the first with all, the others with the best
FAR = 2.0  # times the best of its kind; slower ones are neither tuned nor finalists
AS_FAST = 1.01  # times the fastest: the plainest of these is kept, and recommended

Need = Callable[[ParallelPlan], int | None]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What is searched.

    Attributes:
        base: the cell, with any mechanism.
        mechanisms: MECHANISM or STRATEGY/MECHANISM.
        strategies: combine mechanisms with the registered strategies that give the same weights.
        pipelines: cut the model into stages, too.
        buckets, slots: to be tried besides the cell's own.
    """

    base: Scenario
    mechanisms: tuple[str, ...]
    strategies: bool = False
    pipelines: bool = False
    buckets: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    @property
    def workers(self) -> int:
        """Of the job: GPUs."""
        return self.base.workers * self.base.gpus_per_host

    def plan(self, text: str) -> ParallelPlan:
        """A plan from its text. Raises SimulationError, HostlibError: see ParallelPlan.parse."""
        return ParallelPlan.parse(text, self.workers)

    def scenario(self, plan: ParallelPlan) -> Scenario:
        """The cell of a plan."""
        own = self.base.semantics
        semantics = replace(
            own,
            bucket_bytes=own.bucket_bytes if plan.bucket_bytes is None else plan.bucket_bytes,
            slots=own.slots if plan.slots is None else plan.slots,
        )
        return replace(self.base, mechanism=plan.name, semantics=semantics)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
        answer: of the finalists, as `netfold ask` compares them; None if nothing fits.
        candidates: all that were played, fastest first.
        recommended: None if nothing fits, or if all take the same.
        rivals: finalists whose intervals overlap with the recommended one's.
        scenarios: cells of the finalists.
        left_out: plan -> why it cannot be played.
    """

    answer: Answer | None
    candidates: tuple[Candidate, ...]
    recommended: Candidate | None
    rivals: tuple[Candidate, ...]
    scenarios: tuple[Scenario, ...]
    left_out: Mapping[str, str]

    @property
    def finalists(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if each.finalist)

    def best(self, uses_fabric: bool) -> Candidate | None:
        """The fastest finalist that uses the fabric, or that does not."""
        return next((each for each in self.finalists if each.uses_fabric is uses_fabric), None)


def search(
    space: SearchSpace,
    assumptions: Assumptions,
    tflops: float | None = None,
    seed: int = 1,
    need: Need = lambda plan: None,
    limit_bytes: int | None = None,
    tell: Tell = lambda line: None,
    calibration: Calibration | None = None,
) -> Found:
    """Search for the fastest plan that fits.

    Args:
        tflops: computing speed of a worker, in TFLOP/s; None if unknown.
        seed: of intervals.
        need: bytes of a worker's GPU that a plan takes; None if unknown.
        limit_bytes: of a GPU's memory; None if unknown.
        tell: takes a line of progress.
        calibration: see simulation.answers.answer.answer.

    Raises:
        SimulationError, HostlibError: no plan can be played; with the reason of the first.
    """
    state = _State(space, seed, need, limit_bytes, calibration)
    tell(f"{len(space.mechanisms)} mechanisms")
    plans = []
    for name in space.mechanisms:
        try:
            plans.append(space.plan(name))
        except (SimulationError, HostlibError) as error:
            state.errors[name] = error
    state.consider(plans)
    if not state.played:
        raise next(iter(state.errors.values()))
    sums = [each.name for uses in (False, True) for each in state.best(uses, fit=False)[:KEPT] if "/" not in each.name]
    if space.strategies:
        _with_strategies(state, sums, tell)
    if space.pipelines:
        _with_pipelines(state, sums, tell)
    _tuned(state, tell)
    candidates = sorted(state.played.values(), key=lambda each: each.iteration_ms)
    chosen = _finalists(candidates)
    left_out = {name: str(error) for name, error in state.errors.items()}
    if not chosen:
        return Found(None, tuple(candidates), None, (), (), left_out)
    tell(f"comparing {len(chosen)} finalists")
    scenarios = tuple(space.scenario(each.plan) for each in chosen)
    compared = answer(
        scenarios, assumptions, tflops, seed, longest_s=LONG_S, with_break_even=False, calibration=calibration
    )
    final = _with_rows(candidates, chosen, compared)
    recommended = _recommended(final)
    rivals = tuple(
        each
        for each in final
        if recommended is not None
        and each.finalist
        and each is not recommended
        and each.interval.overlaps(recommended.interval)
    )
    return Found(compared, final, recommended, rivals, scenarios, left_out)


@dataclass(slots=True)
class _State:
    """Plans that were played, and those that cannot be."""

    space: SearchSpace
    seed: int
    need: Need
    limit_bytes: int | None
    calibration: Calibration | None = None
    played: dict[ParallelPlan, Candidate] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    def consider(self, plans: Iterable[ParallelPlan]) -> None:
        """Play plans once, those that were not."""
        new = [plan for plan in dict.fromkeys(plans) if plan not in self.played and plan.name not in self.errors]
        for plan, found in zip(new, in_threads(self._attempt, new), strict=True):
            if isinstance(found, Candidate):
                self.played[plan] = found
            else:
                self.errors[plan.name] = found

    def _attempt(self, plan: ParallelPlan) -> Candidate | SimulationError | HostlibError:
        try:
            return self._candidate(plan)
        except (SimulationError, HostlibError) as error:
            return error

    def _candidate(self, plan: ParallelPlan) -> Candidate:
        scenario = self.space.scenario(plan)
        setup, iteration_s, deviation = _once(scenario)
        interval = perturbation.Interval(iteration_s, iteration_s)
        if self.calibration is not None:
            interval = perturbation.Interval(*self.calibration.interval(plan.name, iteration_s))
        elif iteration_s > NO_TIME_S:
            computing = min(1.0, setup.compute_s / iteration_s)
            shares = {"compute": computing, "hosts": 1 - computing}
            interval = perturbation.propagated_interval(setup, iteration_s, shares, 0.0, deviation, self.seed)
        bytes_ = self.need(plan)
        return Candidate(
            plan,
            iteration_s * 1e3,
            interval.low * 1e3,
            interval.high * 1e3,
            bytes_,
            None if bytes_ is None or self.limit_bytes is None else bytes_ <= self.limit_bytes,
            scenario.choice.needs_fabric,
            scenario.choice.hosts,
            scenario.semantics.bucket_bytes,
            scenario.semantics.slots,
        )

    def best(self, uses_fabric: bool, fit: bool = True) -> list[Candidate]:
        """The fastest plan of each name, of those that may run or, unless they must fit, of all."""
        kept: dict[str, Candidate] = {}
        for each in sorted(self.played.values(), key=lambda each: each.iteration_ms):
            if each.uses_fabric is uses_fabric and (each.may_run or not fit):
                kept.setdefault(each.name, each)
        return list(kept.values())


def _once(scenario: Scenario) -> tuple[Setup, float, float]:
    """A cell's time from one play, or from smaller networks, and how unsure that is."""
    searched = roughly(scenario, SEARCHED_ROUGHNESS)
    if takes_long(scenario, SEARCHED_S, ROUGH):
        result, deviation = extrapolated(searched, ROUGH)
        return smaller(scenario), result.iteration_s, deviation
    setup = Setup.of(searched)
    require_playable(scenario)
    jitter, played = scenario.semantics.jitter, operations(setup.job) * scenario.jobs * scenario.rounds
    if jitter and scenario.variation.is_none and played <= PLAYED_ALL:
        return setup, setup.varied(jitter, scenario.variation.seed).played_s(), 0.0
    return setup, setup.played_s(), 0.0


def _with_strategies(state: _State, sums: list[str], tell: Tell) -> None:
    """Combine the best mechanisms with strategies."""
    space = state.space
    plans = []
    pipelines = {each.value for each in PipelineSchedule}
    for strategy in registered_strategies().values():
        # The memory that shards save is not counted.
        if not strategy.exact or strategy.spec.only_timing or strategy.spec.sharded or strategy.plain in pipelines:
            continue
        for mechanism in dict.fromkeys((*sums, strategy.mechanism)):
            text = f"{strategy.plain}/{mechanism}"
            try:
                plan = space.plan(text)
                _require_own(space.scenario(plan))
            except (SimulationError, HostlibError) as error:
                state.errors[text] = error
                continue
            plans.append(plan)
    tell(f"{len(plans)} combinations with strategies")
    state.consider(plans)


def _with_pipelines(state: _State, sums: list[str], tell: Tell) -> None:
    """Cut the model into stages; with recomputation where nothing else fits."""
    space = state.space
    cuts = [stages for stages in STAGES if space.workers % stages == 0]
    schedules = [each for each in PipelineSchedule if each is not PipelineSchedule.ONE_AT_A_TIME]
    tell(f"pipelines of {', '.join(map(str, cuts))} stages")
    for stages in cuts:
        plans = list(_pipelines(space, schedules, [stages], ROUNDS[:1], sums))
        state.consider(plans)
        state.consider(replace(each, recompute=True) for each in plans if _does_not_fit(state, each))
        fastest_ms = min((each.iteration_ms for each in state.played.values() if each.may_run), default=math.inf)
        of_these = [found.iteration_ms for each in plans if (found := state.played.get(each)) is not None]
        if of_these and min(of_these) > FAR * fastest_ms:  # More stages send more.
            break
    best = [each.plan for uses in (False, True) for each in state.best(uses) if each.plan.schedule is not None]
    others = []
    for each in best[: 2 * KEPT]:
        assert each.schedule is not None
        made = _pipelines(space, [each.schedule], [each.stages], ROUNDS[1:], [each.mechanism])
        others += [replace(plan, recompute=each.recompute) for plan in made]
    tell(f"{len(others)} numbers of micro-batches")
    state.consider(others)
    if not any(each.may_run for each in state.played.values()):
        last = list(_pipelines(space, [PipelineSchedule.ONE_AT_A_TIME], cuts, (0,), sums))
        state.consider([*last, *(replace(each, recompute=True) for each in last)])


def _pipelines(
    space: SearchSpace,
    schedules: Iterable[PipelineSchedule],
    cuts: Iterable[int],
    rounds: Iterable[int],
    sums: Iterable[str],
) -> Iterator[ParallelPlan]:
    """Pipelines whose batch can be cut into so many micro-batches."""
    batch = space.base.subject.batch
    # With one pipeline no gradients are summed, and one mechanism stands for all.
    for stages, of_each in product(cuts, rounds):
        microbatches, replicas = max(1, stages * of_each), space.workers // stages
        if batch * stages % microbatches:
            continue
        for schedule, mechanism in product(schedules, list(sums) if replicas > 1 else list(sums)[:1]):
            chunks = 2 if schedule is PipelineSchedule.INTERLEAVED else 1
            yield ParallelPlan(mechanism, replicas, schedule, stages, microbatches, chunks)


def _does_not_fit(state: _State, plan: ParallelPlan) -> bool:
    found = state.played.get(plan)
    return found is not None and not found.may_run


def _require_own(scenario: Scenario) -> None:
    """Check that a strategy does something of its own that can be played.

    Raises:
        SimulationError: it does what the mechanism does alone, or has too many messages.
        HostlibError: it does not go with the mechanism or the model.
    """
    if scenario.choice.mechanism.one_host:
        raise SimulationError(f"{scenario.mechanism}: all its workers must be on one host")
    few = min(scenario.workers, SAMPLE)
    plan = scenario.subject.plan(scenario.choice, few)
    own = sum(len(each.schedule.nodes[worker(0)]) * few for each in plan.exchanges if worker(0) in each.schedule.nodes)
    if own * (scenario.workers / few) ** 2 > MOST_OWN:  # each worker sends to each other
        raise SimulationError(f"{scenario.mechanism}: its own messages are too many to be searched")
    if few < scenario.workers:  # A strategy may choose by their number; from so many on, its choice hardly changes.
        plan = scenario.subject.plan(scenario.choice, min(scenario.workers, MOST_PLANNED))
    if not plan.exchanges and not plan.chunks:
        raise SimulationError(f"{scenario.mechanism}: does what {scenario.choice.mechanism.name} does with this model")


def _tuned(state: _State, tell: Tell) -> None:
    """Try bucket sizes, then numbers of slots, with the best."""
    space = state.space
    for uses in (False, True):
        best = list(islice((each for each in state.best(uses) if not _has_chunks(space, each)), TUNED))
        near = [each for each in best if each.iteration_ms <= FAR * best[0].iteration_ms]
        if space.buckets:
            tell(f"{len(space.buckets)} bucket sizes of {len(near)} plans")
        state.consider(replace(each.plan, bucket_bytes=size) for each in near for size in space.buckets)
        if not uses:
            continue
        by_name = {each.name: _tuned_best(state, each) for each in near}
        if space.slots:
            tell(f"{len(space.slots)} numbers of slots of {len(near)} plans")
        for each in by_name.values():
            for slots in space.slots:
                before = _tuned_best(state, each)
                state.consider([replace(each.plan, slots=slots)])
                if _tuned_best(state, each) is before:  # more would gain no more
                    break


def _has_chunks(space: SearchSpace, candidate: Candidate) -> bool:
    """Whether a strategy cuts the gradients itself, so there are no buckets."""
    scenario = space.scenario(candidate.plan)
    few = min(scenario.workers, candidate.plan.stages * SAMPLE)
    return bool(scenario.subject.plan(scenario.choice, few).chunks)


def _tuned_best(state: _State, of: Candidate) -> Candidate:
    """The fastest with a plan's name; with the plan's own bucket and slots if others gain little."""
    same = [each for each in state.played.values() if each.name == of.name and each.may_run]
    return _plainest(same)


def _finalists(candidates: list[Candidate]) -> list[Candidate]:
    """The best of each kind that may run, with mechanisms that differ."""
    chosen = []
    for uses in (False, True):
        by_name: dict[str, list[Candidate]] = {}
        for each in candidates:
            if each.uses_fabric is uses and each.may_run:
                by_name.setdefault(each.name, []).append(each)
        by_mechanism: dict[str, list[Candidate]] = {}
        for each in map(_plainest, by_name.values()):
            by_mechanism.setdefault(each.name.rpartition("/")[2], []).append(each)
        best = sorted(map(_plainest, by_mechanism.values()), key=lambda each: (each.iteration_ms, each.plainness))
        chosen += [each for each in best[:FINALISTS] if each.iteration_ms <= FAR * best[0].iteration_ms]
    return chosen


def _plainest(candidates: list[Candidate]) -> Candidate:
    """The plainest of those that are as fast as the fastest."""
    limit = AS_FAST * min(each.iteration_ms for each in candidates)
    near = [each for each in candidates if each.iteration_ms <= limit]
    return min(near, key=lambda each: (each.plainness, each.plan.slots or 0, each.iteration_ms))


def _with_rows(candidates: list[Candidate], chosen: list[Candidate], compared: Answer) -> tuple[Candidate, ...]:
    """All candidates, the finalists with the times of the comparison."""
    rows = {row.mechanism: row for row in compared.rows}
    made = []
    for each in candidates:
        row = rows.get(each.name) if each in chosen else None
        if row is not None:
            each = replace(each, iteration_ms=row.iteration_ms, low_ms=row.low_ms, high_ms=row.high_ms, finalist=True)
        made.append(each)
    return tuple(sorted(made, key=lambda each: each.iteration_ms))


def _recommended(candidates: tuple[Candidate, ...]) -> Candidate | None:
    """The plainest of the fastest finalists; None if all finalists take the same."""
    finalists = [each for each in candidates if each.finalist]
    if len(finalists) > 1 and all(each.iteration_ms == finalists[0].iteration_ms for each in finalists):
        return None
    return _plainest(finalists)
