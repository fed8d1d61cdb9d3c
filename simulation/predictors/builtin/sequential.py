"""sequential: one worker's training, as the mean of a few batches.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from simulation.errors import SimulationError
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.predictor import Estimate, PredictorSpec


def epoch_s(batches_s: Sequence[float], examples: int, batch: int) -> float:
    """Seconds of an epoch, extrapolated from those of a few batches.

    Args:
        examples: of the data set; the last batch of an epoch may be smaller, and counts as a whole one.

    Raises:
        SimulationError: no batch was measured, or a number is below 1.
    """
    if not batches_s or min(examples, batch) < 1:
        raise SimulationError("an epoch is extrapolated from at least one batch of at least one example")
    return sum(batches_s) / len(batches_s) * ceil(examples / batch)


def sequential_s(workload: WorkloadSource, cluster: Cluster) -> float:
    """Seconds that one worker computes for a batch of its own."""
    return workload.trace.compute_s / cluster.speed


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate | None:
    """The time of one worker's batch; None for several workers."""
    return Estimate(sequential_s(workload, cluster)) if plan.workers == 1 else None


SPEC = PredictorSpec("sequential", "one worker's computing (Jansen 2020, section 4.1)", predict)
