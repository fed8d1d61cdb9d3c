"""The parts of a model that a plan's workers have."""

from __future__ import annotations

from dataclasses import replace

from hostlib.pipelines.pipeline_options import microbatch_size
from hostlib.strategies.common.pipeline_plan import parts_of
from hostlib.strategies.plan import PlanContext
from hostlib.strategies.strategy import choose
from simulation.models.workload_source import WorkloadSource
from simulation.plans.layer_costs import LayerCosts, costs_of
from simulation.plans.memory import Memory, memory_of
from simulation.plans.parallel_plan import ParallelPlan


def parts_of_plan(workload: WorkloadSource, plan: ParallelPlan) -> tuple[tuple[LayerCosts, ...], ...]:
    """The layers of each part into which a plan cuts a model, in forward order; one part without a pipeline.

    Raises:
        SimulationError: the layers' outputs are unknown.
        HostlibError: the layers or the batch cannot be cut into so many parts.
    """
    layers = costs_of(workload)
    if plan.schedule is None:
        return (layers,)
    choice = choose(plan.name)
    examples = microbatch_size(choice.strategy.options, workload.batch)
    context = PlanContext(plan.name, workload.layers, plan.workers, workload.batch, choice.mechanism, ())
    count = plan.stages * plan.chunks
    found = parts_of(workload.trace, context, count, examples, plan.recompute)
    costs = {layer.name: layer for layer in layers}
    cut = [tuple(costs[name] for name in part.layers) for part in found]
    return tuple(_with_borrowed(workload, part) for part in cut)


def examples_of(workload: WorkloadSource, plan: ParallelPlan) -> int:
    """Examples of a micro-batch of a pipeline.

    Raises:
        HostlibError: a pipeline's batch cannot be cut into so many.
    """
    return microbatch_size(choose(plan.name).strategy.options, workload.batch)


def memory_of_plan(workload: WorkloadSource, plan: ParallelPlan) -> tuple[Memory, ...]:
    """What each stage's worker needs, or every worker of a plan without a pipeline.

    Raises:
        SimulationError, HostlibError: see parts_of_plan and memory_of.
    """
    return memory_of(workload, plan, parts_of_plan(workload, plan), workload.optimiser)


def _with_borrowed(workload: WorkloadSource, part: tuple[LayerCosts, ...]) -> tuple[LayerCosts, ...]:
    """A part whose layers have copies of the variables that they borrow from layers of other parts."""
    assert workload.architecture is not None
    described = {layer.name: layer for layer in workload.architecture.layers}
    sizes = {variable.name: variable.bytes for variable in workload.architecture.variables}
    own = {variable.name for layer in part for variable in described[layer.name].variables}
    made = []
    for layer in part:
        copied = sum(sizes[name] for name in described[layer.name].borrowed if name not in own)
        made.append(
            replace(
                layer,
                weight_bytes=layer.weight_bytes + copied,
                gradient_bytes=layer.gradient_bytes + copied,
                largest_bytes=max(layer.largest_bytes, copied),
            )
        )
    return tuple(made)
