"""Four ways to learn which plan is fastest, from equations alone to trying all: what each predicts and what it takes.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", section 8.3 and figure 8.1. The
figure has no numbers: it orders the four by time, resources and accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Found:
    """What a way predicts for a plan.

    Attributes:
        epoch_s: seconds of an epoch.
        took_s: seconds that it took to predict; worker_s: of all workers together.
    """

    epoch_s: float
    took_s: float
    worker_s: float


def by_equations(batches_s: Sequence[float], batches: float, plan_s: Callable[[float], float]) -> Found:
    """The thesis's system: a few batches on one worker, then an equation for the plan.

    Args:
        batches_s: seconds of each batch on one worker.
        batches: of an epoch, each of all workers' examples; the last one may be a part.
        plan_s: seconds of the plan's iteration from those of one worker's batch.
    """
    mean = _mean(batches_s)
    return Found(plan_s(mean) * batches, sum(batches_s), sum(batches_s))


def by_data(batches_s: Sequence[float], batches: float, workers: int) -> Found:
    """Extrapolation of data: a few of the plan's own batches on as many workers as it is for.

    Args:
        batches_s: seconds of each of the plan's iterations, on all workers.
    """
    return Found(_mean(batches_s) * batches, sum(batches_s), workers * sum(batches_s))


def by_hardware(sequential_epoch_s: float, workers: int, speedup: Callable[[int], float]) -> Found:
    """Extrapolation of hardware: a whole epoch on one worker, and an assumption of how the plan scales.

    Args:
        speedup: of so many workers over one.

    Raises:
        SimulationError: the speed-up is not above 0.
    """
    times = speedup(workers)
    if not times > 0:
        raise SimulationError(f"a speed-up must be above 0, not {times}")
    return Found(sequential_epoch_s / times, sequential_epoch_s, sequential_epoch_s)


def by_suite(epochs_s: Sequence[float], workers: int) -> Found:
    """The benchmark suite: the plan's own epochs, whose mean is the prediction.

    Args:
        epochs_s: seconds of each epoch on all workers; the thesis trains three.
    """
    return Found(_mean(epochs_s), sum(epochs_s), workers * sum(epochs_s))


def _mean(seconds: Sequence[float]) -> float:
    if not seconds:
        raise SimulationError("nothing was measured to extrapolate from")
    return sum(seconds) / len(seconds)
