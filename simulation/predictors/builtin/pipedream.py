"""pipedream: PipeDream's pipeline, which is never emptied: a profile, stages with replicas, and batches that go round evenly.

The thesis has no equation for it (its section 7.2); this is PipeDream's own model. In the steady state, all stages work
at once, and a batch takes as long as the slowest stage or transfer.

Sources: Jansen 2020, "A performance-based recommender system for Distributed DNN training", chapter 7 (batches);
Narayanan et al. 2019, "PipeDream", section 3.1 (the partitioner).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, lcm

from hostlib.pipelines.partitioner import LayerCost, Link, Partition, partition_with_replicas
from simulation.errors import SimulationError
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.layer_costs import costs_of
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.predictors.predictor import Estimate, PredictorSpec
from simulation.predictors.ring_links import ring_links


def profile(workload: WorkloadSource, speed: float = 1.0) -> list[LayerCost]:
    """Each layer's costs of one worker's batch, as PipeDream's profiler measures them.

    Args:
        speed: how many times as fast as the workload's times.

    Raises:
        SimulationError: the layers' outputs are unknown.
    """
    batch = workload.batch
    return [
        LayerCost(
            layer.forward_s * batch * 1e9 / speed,
            layer.backward_s * batch * 1e9 / speed,
            layer.output_bytes * batch,
            layer.gradient_bytes,
        )
        for layer in costs_of(workload)
    ]


def batches_by_gcd(batches: int, replicas: Sequence[int]) -> int:
    """Batches of an epoch by the rule as the thesis's section 7.1 states it: a multiple of the stages' gcd.

    With 3 and 2 replicas, the example of its figure 7.3, the gcd is 1 and the rule changes nothing; see
    batches_for_all.
    """
    return batches - batches % gcd(*replicas)


def batches_for_all(batches: int, replicas: Sequence[int]) -> int:
    """Batches of an epoch that all replicas of all stages share evenly: a multiple of the stages' lcm.

    Raises:
        SimulationError: nothing is left.
    """
    kept = batches - batches % lcm(*replicas)
    if kept == 0:
        raise SimulationError(f"{batches} batches cannot go round stages with {', '.join(map(str, replicas))} replicas")
    return kept


def steady_s(partition: Partition) -> float:
    """Seconds from one batch to the next, when the pipeline is full."""
    return partition.slowest_ns / 1e9


def epoch_s(partition: Partition, layers: Sequence[LayerCost], batches: int) -> float:
    """Seconds of an epoch: the first batch passes all stages, then one batch after the other leaves.

    Raises:
        SimulationError: see batches_for_all.
    """
    first = sum(layer.forward_ns + layer.backward_ns for layer in layers) / 1e9
    return first + (batches_for_all(batches, [stage.replicas for stage in partition.stages]) - 1) * steady_s(partition)


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate | None:
    """The time in which all workers' batches leave the full pipeline, with the partitioner's own stages and replicas.

    None for anything but 1f1b, whose steady state this is.
    """
    if plan.schedule is not PipelineSchedule.ONE_F_ONE_B:
        return None
    links = ring_links(workload, cluster, plan)
    slowest = min(link.bytes_s for link in links)
    between = Link(slowest / 1e9 if slowest < inf else inf, max(link.latency_s for link in links) * 1e9)
    found = partition_with_replicas(profile(workload, cluster.speed), plan.workers, between)
    return Estimate(plan.workers * steady_s(found))


SPEC = PredictorSpec("pipedream", "PipeDream's full pipeline, with stages of its own partitioner", predict)
