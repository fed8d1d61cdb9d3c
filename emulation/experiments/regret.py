"""Regret: how much longer a recommended plan takes than the best of the emulated ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simulation.experiments.experiment_file import Cell, Experiment


@dataclass(frozen=True, slots=True)
class Regret:
    """Of one question: a model on a network.

    Attributes:
        recommended, best: EXPERIMENT: CELL.
        regret: the recommended plan's emulated time over the best one's, less 1.
        compared: number of plans.
        valid: whether all their times are the network's.
    """

    recommended: str
    best: str
    regret: float
    compared: int
    valid: bool


def regrets(experiments: Iterable[Experiment], rows: Iterable[Mapping[str, Any]]) -> list[Regret]:
    """The regrets of all experiments with a recommended plan.

    Cells of all experiments that differ in nothing but plan, bucket and slots answer the same question.

    Args:
        experiments: whose names differ.
        rows: their results so far, each with its `experiment`.
    """
    measured = {(row["experiment"], row["cell"]): row for row in rows}
    asked: dict[tuple[Any, ...], list[str]] = {}
    named: dict[tuple[Any, ...], str] = {}
    by_name: dict[str, Mapping[str, Any]] = {}
    for experiment in experiments:
        for cell in experiment.cells:
            row = measured.get((experiment.name, cell.name))
            if row is None:
                continue
            question, name = _question(experiment, cell), f"{experiment.name}: {cell.name}"
            by_name[name] = row
            asked.setdefault(question, []).append(name)
            if cell.mechanism == experiment.recommended:
                named[question] = name
    found = []
    for question, chosen in named.items():
        names = asked[question]
        best = min(names, key=lambda name: float(by_name[name]["iteration_ms"]))
        times = by_name[chosen]["iteration_ms"], by_name[best]["iteration_ms"]
        valid = all(by_name[name]["valid"] for name in names)
        found.append(Regret(chosen, best, times[0] / times[1] - 1, len(names), valid))
    return found


def _question(experiment: Experiment, cell: Cell) -> tuple[Any, ...]:
    replay = experiment.replay
    return (
        *(cell.model, cell.bandwidth, cell.workers, cell.loss, cell.jobs, cell.delay),
        *(replay.batch, replay.pixels, replay.tflops),
        str(sorted(experiment.topology.items())),
    )


def regret_sentence(found: list[Regret]) -> str:
    """The regrets in one sentence, of the questions whose times are all valid."""
    valid = [each for each in found if each.valid]
    if not valid:
        return f"regret: no question of {len(found)} has valid times only"
    worst = max(valid, key=lambda each: each.regret)
    right = sum(each.regret == 0 for each in valid)
    near = sum(each.regret <= 0.02 for each in valid)
    return (
        f"recommended plans, {len(valid)} valid questions of {len(found)}: {right} are the fastest of those emulated, "
        f"{near} take at most 2% longer, the worst {worst.regret:.1%} longer ({worst.recommended})"
    )
