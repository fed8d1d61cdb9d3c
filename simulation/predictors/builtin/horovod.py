"""horovod: data parallelism of which only the last all-reduce is not hidden by computing.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", section 5.1, equation 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from hostlib.strategies.strategy import DEFAULT_STRATEGY, choose
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.builtin.sequential import sequential_s
from simulation.predictors.predictor import Estimate, PredictorSpec
from simulation.predictors.ring_links import WorkerLink, ring_links

THRESHOLD_BYTES = 64 * 2**20  # HOROVOD_FUSION_THRESHOLD of Horovod 0.19, the thesis's year


def horovod_s(sequential: float, gradients: float, threshold: float, links: Sequence[WorkerLink]) -> float:
    """Equation 5.1: seconds of an iteration.

    Args:
        sequential: seconds of one worker for the examples of all workers.
        gradients: bytes of the model's gradients; threshold: of an all-reduce, at most.
        links: from each worker to the next in the ring.
    """
    workers = len(links)
    return sequential / workers + all_reduce_s(min(gradients, threshold), links)


def all_reduce_s(size: float, links: Sequence[WorkerLink]) -> float:
    """Seconds of a ring's all-reduce of so many bytes: 2 (W - 1) steps, each as long as the slowest link's."""
    workers = len(links)
    return 2 * (workers - 1) * max(link.transfer_s(size / workers) for link in links)


def is_ring(plan: ParallelPlan) -> bool:
    """Whether a plan is data parallelism with a ring's all-reduce, which the thesis assumes."""
    if plan.schedule is not None:
        return False
    choice = choose(plan.mechanism)
    return choice.strategy.plain == DEFAULT_STRATEGY and choice.mechanism.name == "ring"


def threshold_of(plan: ParallelPlan) -> int:
    """Bytes of an all-reduce, at most: the plan's bucket."""
    return plan.bucket_bytes or THRESHOLD_BYTES


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate | None:
    """Equation 5.1 with the network's links; None for anything but a ring."""
    if not is_ring(plan):
        return None
    sequential = plan.workers * sequential_s(workload, cluster)
    links = ring_links(workload, cluster, plan)
    return Estimate(horovod_s(sequential, workload.trace.bytes, threshold_of(plan), links))


SPEC = PredictorSpec("horovod", "data parallelism, its last all-reduce not hidden (Jansen 2020, equation 5.1)", predict)
