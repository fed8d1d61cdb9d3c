"""Compare predicted epochs with those of another run of the suite: errors, and the frameworks that would be recommended.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", figures 5.1, 5.2, 6.2 and 8.1,
tables 8.1 and 8.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from emulation.errors import EmulationError
from emulation.suite.catalogue import SEQUENTIAL
from emulation.suite.suite_run import Row, read_rows, read_suite
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.alternatives import Found, by_data, by_equations, by_hardware, by_suite
from simulation.predictors.builtin.torchgpipe import share_of_sequential

CLOSE = 0.15  # section 5.2: "at most 15% off"
BATCHES = 10  # of an epoch, where a few are extrapolated; section 8.3 says "a couple"
EPOCHS = 3  # of each cell in the thesis's suite, section 3.4

Key = tuple[str, int]  # a cell's name and its batch
Case = tuple[str, str, int]  # data set, network, workers


@dataclass(frozen=True, slots=True)
class Prediction:
    """A cell that was predicted, beside the other run's time.

    Attributes:
        row: of the other run.
        predictor: what predicted.
        iteration_s, epoch_s: as predicted.
    """

    row: Row
    predictor: str
    iteration_s: float
    epoch_s: float

    @property
    def error(self) -> float:
        """Predicted over the other run's time, minus 1."""
        return self.epoch_s / float(self.row["epoch_s"]) - 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which framework would be recommended, and which is the fastest.

    Attributes:
        recommended: None if nothing is known that tells frameworks apart.
        regret: time of the recommended over the fastest, minus 1; None without a recommendation.
    """

    dataset: str
    network: str
    workers: int
    recommended: str | None
    fastest: str
    regret: float | None

    @property
    def is_right(self) -> bool:
        return self.regret == 0


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to recommend.

    Attributes:
        took_s: seconds for all cases; worker_s: of all workers that it took, together.
    """

    name: str
    recommendations: Sequence[Recommendation]
    took_s: float
    worker_s: float

    @property
    def right(self) -> int:
        return sum(each.is_right for each in self.recommendations)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of a framework's predictions.

    Attributes:
        close: cells that are at most 15 % off; close_networks: networks of which all cells are.
    """

    framework: str
    predictor: str
    cells: int
    median: float
    least: float
    most: float
    close: int
    networks: int
    close_networks: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more runs of the suite: what is taken as true, and what was predicted.

    Attributes:
        rows: of the run that is taken as true, with times.
        predictions: of those of its cells that were predicted, by more than one worker.
    """

    rows: Sequence[Row]
    predictions: Sequence[Prediction]

    @property
    def _cases(self) -> dict[Case, list[Row]]:
        """Rows of several workers that are alternatives to each other."""
        found: dict[Case, list[Row]] = {}
        for row in self.rows:
            if row["framework"] != SEQUENTIAL:
                found.setdefault((row["dataset"], row["network"], row["workers"]), []).append(row)
        return found

    @property
    def errors(self) -> list[ErrorSummary]:
        """A summary for each framework."""
        made = []
        for framework in dict.fromkeys(each.row["framework"] for each in self.predictions):
            mine = [each for each in self.predictions if each.row["framework"] == framework]
            close = [abs(each.error) <= CLOSE for each in mine]
            networks = {each.row["network"] for each in mine}
            far = {each.row["network"] for each, is_close in zip(mine, close, strict=True) if not is_close}
            errors = [each.error for each in mine]
            made.append(
                ErrorSummary(
                    framework,
                    mine[0].predictor,
                    len(mine),
                    median(map(abs, errors)),
                    min(errors),
                    max(errors),
                    sum(close),
                    len(networks),
                    len(networks - far),
                )
            )
        return made

    @property
    def has_choice(self) -> bool:
        """Whether several frameworks were predicted."""
        return len({each.row["framework"] for each in self.predictions}) > 1

    @property
    def recommendations(self) -> list[Recommendation]:
        """For each data set, network and number of workers, as predicted."""
        return self._recommended({_key(each.row): each.epoch_s for each in self.predictions})

    @property
    def alternatives(self) -> list[Alternative]:
        """The thesis's four ways, for the cells that were predicted; none without training on one worker."""
        one = {(row["dataset"], row["network"]): row for row in self.rows if row["framework"] == SEQUENTIAL}
        if not one:
            return []
        ways: dict[str, dict[Key, Found]] = {name: {} for name in ("equations", "hardware", "data", "suite")}
        for each in self.predictions:
            sequential = one.get((each.row["dataset"], each.row["network"]))
            for name, found in _by_each_way(each, sequential).items():
                ways[name][_key(each.row)] = found
        return [self._alternative(name, found) for name, found in ways.items()]

    def _alternative(self, name: str, found: Mapping[Key, Found]) -> Alternative:
        took_s = worker_s = 0.0
        for rows in self._cases.values():
            mine = [found[_key(row)] for row in rows if _key(row) in found]
            # What one worker did serves all frameworks.
            counted = mine[:1] if name in ("equations", "hardware") else mine
            took_s += sum(each.took_s for each in counted)
            worker_s += sum(each.worker_s for each in counted)
        recommended = self._recommended({key: each.epoch_s for key, each in found.items()})
        return Alternative(name, recommended, took_s, worker_s)

    def _recommended(self, predicted: Mapping[Key, float]) -> list[Recommendation]:
        made = []
        for (dataset, network, workers), rows in self._cases.items():
            candidates = [row for row in rows if _key(row) in predicted]
            if not candidates:
                continue
            best = min(candidates, key=lambda row: predicted[_key(row)])
            fastest = min(rows, key=lambda row: float(row["epoch_s"]))
            known = len(candidates) == 1 or predicted[_key(best)] < inf
            made.append(
                Recommendation(
                    dataset,
                    network,
                    workers,
                    best["framework"] if known else None,
                    fastest["framework"],
                    best["epoch_s"] / fastest["epoch_s"] - 1 if known else None,
                )
            )
        return made


def _by_each_way(each: Prediction, one: Row | None) -> dict[str, Found]:
    """What each way predicts for a cell.

    Args:
        one: the row of training on one worker; None if its memory is too small for that.
    """
    row = each.row
    iteration_s, epoch_s, workers = row["iteration_ms"] / 1e3, row["epoch_s"], row["workers"]
    batches = epoch_s / iteration_s
    found = {
        "data": by_data([iteration_s] * BATCHES, batches, workers),
        "suite": by_suite([epoch_s] * EPOCHS, workers),
    }
    if one is None:  # what fits is then the only thing that is known
        return found | {"equations": Found(each.epoch_s, 0.0, 0.0), "hardware": Found(inf, 0.0, 0.0)}
    speedup = assumed_speedup(row["mechanism"], workers)
    few = [one["iteration_ms"] / 1e3] * BATCHES
    return found | {
        "equations": by_equations(few, batches, lambda _: each.iteration_s),
        "hardware": by_hardware(one["epoch_s"], workers, lambda _: speedup),
    }


def assumed_speedup(mechanism: str, workers: int) -> float:
    """What extrapolating hardware assumes: data parallelism is linear, and pipelines have only the bubble of equation 6.1."""
    plan = ParallelPlan.parse(mechanism, workers)
    if plan.schedule is None:
        return float(workers)
    return plan.replicas / share_of_sequential(plan.stages, plan.microbatches)


def compare(reference: Path, predicted: Sequence[Path], frameworks: Iterable[str] = ()) -> Comparison:
    """Compare directories of the suite. Of several predictions of a cell, the first counts.

    Args:
        frameworks: those to compare, beside training on one worker; empty: all.

    Raises:
        EmulationError: a directory is none of a suite, or broken; no cell has times in both.
    """
    wanted = {*frameworks, SEQUENTIAL} if frameworks else None
    rows = [row for row in _timed(reference) if wanted is None or row["framework"] in wanted]
    found: dict[Key, tuple[str, Row]] = {}
    for folder in predicted:
        predictor = read_suite(folder).predictor
        for row in _timed(folder):
            found.setdefault(_key(row), (predictor, row))
    predictions = []
    for row in rows:
        if row["framework"] != SEQUENTIAL and _key(row) in found:
            predictor, other = found[_key(row)]
            predictions.append(Prediction(row, predictor, other["iteration_ms"] / 1e3, other["epoch_s"]))
    if not predictions:
        raise EmulationError(
            f"{reference} has no cell of several workers that is in {', '.join(map(str, predicted))}, too"
        )
    return Comparison(rows, predictions)


def _timed(folder: Path) -> list[Row]:
    """A suite's rows that have times."""
    read_suite(folder)
    return [row for row in read_rows(folder) if row["epoch_s"] is not None]


def _key(row: Row) -> Key:
    return row["cell"], row["batch"]
