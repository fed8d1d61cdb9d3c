"""gpipe: GPipe as torchgpipe does it, which does not hide its messages behind computing.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", equations 6.1 and 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.errors import SimulationError
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.plans.stages import examples_of, parts_of_plan
from simulation.predictors.builtin.sequential import sequential_s
from simulation.predictors.predictor import Estimate, PredictorSpec
from simulation.predictors.ring_links import ring_links


def share_of_sequential(workers: int, microbatches: int) -> float:
    """Equation 6.1: the pipeline's computing time over that of one worker."""
    return (workers + microbatches - 1) / (workers * microbatches)


def communication_s(microbatches: int, transfers_s: Sequence[float]) -> float:
    """Equation 6.2: seconds of all messages.

    Args:
        transfers_s: of one micro-batch's activations over each link, from each stage to the next.

    Raises:
        SimulationError: there are fewer micro-batches than the equation holds for.
    """
    workers = len(transfers_s) + 1
    full = microbatches - (workers - 2)
    if full < 0:
        raise SimulationError(f"equation 6.2 holds for at least {workers - 2} micro-batches, not {microbatches}")
    filling = sum(max(transfers_s[:stage]) for stage in range(1, workers - 1))
    emptying = sum(max(transfers_s[stage:]) for stage in range(1, workers - 1))
    return 2 * (filling + full * max(transfers_s) + emptying)


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate | None:
    """Equations 6.1 and 6.2; None for anything but one pipeline, or for too few micro-batches.

    The activations that a link carries are those of the last layer before it, as section 2.3 says.
    """
    if plan.schedule is not PipelineSchedule.GPIPE or plan.replicas > 1 or plan.microbatches < plan.stages - 2:
        return None
    sequential = plan.workers * sequential_s(workload, cluster)
    sizes = [part[-1].output_bytes * examples_of(workload, plan) for part in parts_of_plan(workload, plan)[:-1]]
    links = ring_links(workload, cluster, plan)
    transfers = [link.transfer_s(size) for link, size in zip(links[:-1], sizes, strict=True)]
    computing = sequential * share_of_sequential(plan.stages, plan.microbatches)
    return Estimate(computing + communication_s(plan.microbatches, transfers))


SPEC = PredictorSpec("gpipe", "GPipe without overlap (Jansen 2020, equations 6.1 and 6.2)", predict)
