"""horovod-fusion: data parallelism with Horovod's tensor fusion, cycle by cycle.

Every so many milliseconds the gradients that are ready are summed together, up to a threshold. A gradient above the
threshold is summed by itself. All-reduces follow each other.

Source: Jansen 2020, "A performance-based recommender system for Distributed DNN training", section 5.1.1, which describes
this and takes the worst case of it for equation 5.1; Sergeev and Del Balso 2018, "Horovod", section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from simulation.errors import SimulationError
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.builtin.horovod import all_reduce_s, is_ring, threshold_of
from simulation.predictors.builtin.sequential import sequential_s
from simulation.predictors.predictor import Estimate, PredictorSpec
from simulation.predictors.ring_links import WorkerLink, ring_links

CYCLE_S = 0.005  # HOROVOD_CYCLE_TIME of Horovod 0.19


def fused(ready: Iterable[tuple[float, int]], threshold: float, cycle_s: float) -> list[tuple[float, int]]:
    """All-reduces: when each can begin, and its bytes.

    Args:
        ready: when each gradient is ready, in seconds, and its bytes; in that order.

    Raises:
        SimulationError: the cycle time is not above 0.
    """
    if not cycle_s > 0:
        raise SimulationError(f"Horovod's cycle time must be above 0, not {cycle_s}")
    made: list[tuple[float, int]] = []
    for at, size in ready:
        begin = ceil(at / cycle_s) * cycle_s
        if made and made[-1][0] == begin and made[-1][1] + size <= threshold:
            made[-1] = begin, made[-1][1] + size
        else:
            made.append((begin, size))
    return made


def fusion_s(
    compute_s: float, ready: Iterable[tuple[float, int]], threshold: float, cycle_s: float, links: Sequence[WorkerLink]
) -> float:
    """Seconds of an iteration whose computing takes `compute_s`."""
    end = compute_s
    free = 0.0
    for begin, size in fused(ready, threshold, cycle_s):
        free = max(free, begin) + all_reduce_s(size, links)
        end = max(end, free)
    return end


def predict(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> Estimate | None:
    """Fused all-reduces, one after the other; None for anything but a ring."""
    if not is_ring(plan):
        return None
    compute_s = sequential_s(workload, cluster)
    trace = cluster.subject(workload).trace
    events = trace.aggregation(trace.workers[0])
    # Events count from the first gradient; the forward pass and the backward pass before it precede them.
    first_s = (sum(layer.forward_ns for layer in trace.layers) + trace.lead_ns) / 1e9
    ready = [(first_s + event.time_ns / 1e9, event.bytes) for event in events]
    links = ring_links(workload, cluster, plan)
    if plan.workers == 1:
        return Estimate(compute_s)
    return Estimate(fusion_s(compute_s, ready, threshold_of(plan), CYCLE_S, links))


SPEC = PredictorSpec("horovod-fusion", "data parallelism with Horovod's tensor fusion, cycle by cycle", predict)
