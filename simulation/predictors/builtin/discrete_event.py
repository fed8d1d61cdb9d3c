"""simulator: schedules executed in virtual time on the cluster's network.

Simulates data-parallel training as DDP does it: the forward pass begins when everything is summed; pipelines with the
passes of each micro-batch and the messages between stages.
"""

from __future__ import annotations

from simulation.answers.answer import answer
from simulation.experiments.single_iteration import simulate
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.predictor import Estimate, PredictorSpec


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate:
    """Predict by simulation."""
    return Estimate(simulate(cluster.scenario(workload, plan)).iteration_s)


def with_interval(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate:
    """Like `predict`, with the interval that `netfold ask` has."""
    (row,) = answer([cluster.scenario(workload, plan)], {}).rows
    return Estimate(row.iteration_ms / 1e3, row.low_ms / 1e3, row.high_ms / 1e3)


SPEC = PredictorSpec("simulator", "schedules played in virtual time, event by event", predict, with_interval)
