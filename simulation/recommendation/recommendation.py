"""A recommendation: which plan to use, how long and how dear it is, how sure that is, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.answers.answer import Answer, Assumptions, Row
from simulation.experiments.verdict import times_text
from simulation.plans.stages import memory_of_plan
from simulation.predictors.calibration import Calibration
from simulation.recommendation.candidate import Candidate
from simulation.recommendation.changes import Change, Contest, Map, changes, speed_map
from simulation.recommendation.run_cost import RunCost, require_legal
from simulation.recommendation.search import Found, Need, SearchSpace, Tell, search

DAY_S, HOUR_S, MINUTE_S = 86400, 3600, 60


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The outcome of a search.

    Attributes:
        text: in sentences.
        recommended: None if nothing fits, or if all plans take the same.
        unresolved: the intervals of the recommended plan and of another finalist overlap, or all take the same.
        limited_by: what limits the recommended plan: computing, a kind of link, latency, slots, or memory.
        memory_limit_bytes: of each GPU; None if unknown.
        map: None unless both kinds of mechanisms were compared.
        answer: of the finalists, as `netfold ask` compares them; None if nothing fits.
    """

    text: str
    recommended: Candidate | None
    unresolved: bool
    limited_by: str | None
    candidates: tuple[Candidate, ...]
    changes: tuple[Change, ...]
    map: Map | None
    run: RunCost | None
    memory_limit_bytes: int | None
    tflops: float | None
    answer: Answer | None
    assumptions: Assumptions
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def finalists(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates if each.finalist)

    def row(self, candidate: Candidate) -> Row | None:
        """The comparison's row of a finalist."""
        rows = () if self.answer is None else self.answer.rows
        return next((row for row in rows if row.mechanism == candidate.name), None)

    def as_json(self) -> dict[str, Any]:
        """The JSON that `netfold ask --search` prints with `--json`: the keys of `netfold ask`, and the search's."""
        none = {
            "answer": self.text,
            "unresolved": self.unresolved,
            "best": None,
            "assumptions": {name: dict(each) for name, each in self.assumptions.items()},
            "rows": [],
        }
        of_answer = none if self.answer is None else self.answer.as_json()
        chosen = self.recommended
        return {
            **of_answer,
            "answer": self.text,
            "unresolved": self.unresolved,
            "recommended": None if chosen is None else chosen.name,
            "settings": None if chosen is None else {"bucket_bytes": chosen.bucket_bytes, "slots": chosen.slots},
            "limited_by": self.limited_by,
            "changes": [each.as_json() for each in self.changes],
            "candidates": [each.as_json() for each in self.candidates],
            "memory_limit_bytes": self.memory_limit_bytes,
            "run": None if self.run is None else self.run.as_json(),
            "map": None if self.map is None else self.map.as_json(),
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for beside the plan.

    Attributes:
        examples: of the data set; None for no epochs.
        price: of a GPU hour.
        changes: look for what would change the answer.
        map: make one, which takes some hundred plays.

    Raises:
        SimulationError: a number is illegal.
    """

    examples: int | None = None
    epochs: int = 1
    price: float | None = None
    changes: bool = True
    map: bool = True

    def __post_init__(self) -> None:
        require_legal(self.examples, self.epochs, self.price)


def recommend(
    space: SearchSpace,
    assumptions: Assumptions,
    tflops: float | None,
    seed: int,
    memory_limit_bytes: int | None,
    wanted: Wanted,
    tell: Tell = lambda line: None,
    calibration: Calibration | None = None,
) -> Recommendation:
    """Search, and say what would change the outcome.

    Args:
        tflops: computing speed of a worker; None if unknown.
        memory_limit_bytes: of each GPU; None if unknown.
        tell: takes a line of progress.
        calibration: see simulation.answers.answer.answer.

    Raises:
        SimulationError, HostlibError: no plan can be played, or a number is illegal.
    """
    found = search(space, assumptions, tflops, seed, _need(space), memory_limit_bytes, tell, calibration)
    chosen, run = found.recommended, None
    if wanted.examples is not None:
        # All plans take the same if none is chosen.
        of = chosen or next(iter(found.finalists), None)
        if of is not None:
            times = of.iteration_ms, of.low_ms, of.high_ms
            batch, workers = space.base.subject.batch, space.workers
            run = RunCost.of(times, wanted.examples, batch, workers, wanted.epochs, wanted.price)
    contest, where, map_ = None, list[Change](), None
    if chosen is not None and (wanted.changes or wanted.map):
        contest = Contest.of(found)
    if contest is not None and wanted.changes:
        tell("what would change the answer")
        where = changes(contest, tflops)
    if contest is not None and wanted.map:
        tell("a map of bandwidths and speeds")
        map_ = speed_map(contest)
    if (memory := _memory_change(found, memory_limit_bytes)) is not None:
        where.append(memory)
    limited_by = None
    if chosen is not None and found.answer is not None:
        limited_by = next(row.limited_by for row in found.answer.rows if row.mechanism == chosen.name)
        limited_by = "memory" if memory is not None else limited_by
    unresolved = bool(found.rivals) or (chosen is None and found.answer is not None)
    return Recommendation(
        _text(found, run, memory_limit_bytes),
        chosen,
        unresolved,
        limited_by,
        found.candidates,
        tuple(where),
        map_,
        run,
        memory_limit_bytes,
        tflops,
        found.answer,
        assumptions,
        found.left_out,
    )


def _need(space: SearchSpace) -> Need:
    """What plans need of a GPU's memory; unknown for traces and bare all-reduces."""
    subject = space.base.subject
    if subject.architecture is None:
        return lambda plan: None
    return lambda plan: max(each.total for each in memory_of_plan(subject, plan))


def _memory_change(found: Found, limit_bytes: int | None) -> Change | None:
    """The memory from which a faster plan would fit."""
    chosen = found.recommended
    for each in found.candidates:  # fastest first
        if each.fits is False and each.memory_bytes is not None and limit_bytes is not None:
            if chosen is not None and each.high_ms >= chosen.low_ms:
                return None
            return Change("memory", "byte", limit_bytes, each.memory_bytes, "above", each.uses_fabric, each.name)
    return None


# ---- sentences -----------------------------------------------------------------------------------------------------


def _text(found: Found, run: RunCost | None, limit_bytes: int | None) -> str:
    chosen = found.recommended
    if found.answer is None:
        least = min((each.memory_bytes for each in found.candidates if each.memory_bytes is not None), default=0)
        assert limit_bytes is not None, "otherwise everything may run"
        return (
            f"No plan fits into {gigabytes(limit_bytes)} of GPU memory: the least that one needs is {gigabytes(least)}; "
            "a smaller --batch needs less."
        )
    if chosen is None:
        first = found.finalists[0]
        return f"None is faster: all plans take the same {first.iteration_ms:.1f} ms." + _run_text(run)
    sentences = [f"Use {use(chosen)}: {milliseconds(chosen)} an iteration{_against(found, chosen)}."]
    if found.rivals:
        names = " and ".join(each.name for each in found.rivals)
        sentences.append(f"Unresolved: {names} may be as fast, their intervals overlap.")
    return " ".join(sentences) + _run_text(run)


def use(candidate: Candidate) -> str:
    """A plan with its bucket size and slots, where these are not the usual ones."""
    parts = [candidate.name]
    if candidate.plan.bucket_bytes is not None:
        parts.append(f"buckets of {candidate.bucket_bytes / 2**20:g} MiB")
    if candidate.plan.slots is not None:
        parts.append(f"{candidate.slots} slots")
    if candidate.servers:
        parts.append(f"{candidate.servers} more host{'s' if candidate.servers > 1 else ''} for servers")
    return parts[0] if len(parts) == 1 else f"{parts[0]} with {' and '.join(parts[1:])}"


def three_digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def milliseconds(candidate: Candidate) -> str:
    """Time and interval."""
    return f"{candidate.iteration_ms:.1f} ms ({candidate.low_ms:.1f} to {candidate.high_ms:.1f})"


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def duration(seconds: float) -> str:
    """Two units at most: `3 h 20 min`."""
    if seconds < 10 * MINUTE_S:
        minutes, rest = divmod(round(seconds), 60)
        return f"{seconds:.3g} s" if seconds < MINUTE_S else f"{minutes} min {rest} s"
    minutes = round(seconds / MINUTE_S)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{seconds / DAY_S:.1f} days"


def _against(found: Found, chosen: Candidate) -> str:
    """How much faster it is than the best of the other kind."""
    other = found.best(not chosen.uses_fabric)
    if other is None or not chosen.iteration_ms:
        return ""
    kind = "the best of hosts alone" if chosen.uses_fabric else "the best with the fabric's help"
    times = other.iteration_ms / chosen.iteration_ms
    if times < 1:
        return f", about as fast as {other.name}, {kind}"
    return f", {times_text(times)} times as fast as {other.name}, {kind}"


def _run_text(run: RunCost | None) -> str:
    if run is None:
        return ""
    what = "An epoch" if run.epochs == 1 else f"{run.epochs} epochs"
    money = "" if run.cost is None else f", {money_text(run.cost)}"
    return f" {what} of {run.examples:,} examples: {duration(run.seconds)}, {run.gpu_hours:,.3g} GPU hours{money}."


def money_text(amount: float) -> str:
    """In the unit of --price."""
    return f"{amount:,.2f} at the given price"


def change_text(change: Change) -> str:
    """A change in a sentence."""
    what = {
        "bandwidth": f"{three_digits(change.at / 1e9)} Gbit/s",
        "gpu_speed": f"{three_digits(change.at)} {change.unit}",
        "workers": f"{change.at:,.0f} workers",
        "slots": f"{change.at:,.0f} slot{'s' if change.at > 1 else ''}",
        "elements": f"{change.at:,.0f} elements in a packet",
        "memory": f"{gigabytes(change.at)} of GPU memory",
    }[change.what]
    if change.what == "memory":
        return f"With {what}: {change.plan} would fit, and be faster."
    where = "Above" if change.side == "above" else "Below"
    if change.what in ("workers", "slots", "elements"):
        where = "From" if change.side == "above" else "Down to"
        what += " on" if change.side == "above" else ""
    effect = "the fabric would pay" if change.fabric_pays else "the fabric's help would no longer pay"
    return f"{where} {what}: {effect}; the fastest there is {change.plan}."
