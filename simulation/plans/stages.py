"""The parts of a model that a plan's workers have."""

from __future__ import annotations

from dataclasses import replace

from hostlib.pipelines.pipeline_options import microbatch_size
from hostlib.strategies.common.pipeline_plan import Part, parts_of
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
    ends = _ends(workload, layers, found, examples)
    cut = [layers[first:end] for first, end in zip((0, *ends), (*ends, len(layers)), strict=True)]
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


def _ends(
    workload: WorkloadSource, layers: tuple[LayerCosts, ...], parts: list[Part], examples: int
) -> tuple[int, ...]:
    """Where each part but the last ends.

    Parts name their parameters; of layers without any behind those, such as pools, the last one whose output is as large as
    the part's is its last.
    """
    assert workload.architecture is not None
    part_of = {name: number for number, part in enumerate(parts) for name in part.parameters}
    last = [0] * len(parts)
    first = [len(layers)] * len(parts)
    for place, layer in enumerate(workload.architecture.layers):
        for number in {part_of[variable.name] for variable in layer.trained if variable.name in part_of}:
            last[number] = max(last[number], place)
            first[number] = min(first[number], place)
    ends = []
    for number, part in enumerate(parts[:-1]):
        between = range(last[number], first[number + 1])
        fits = [place for place in between if layers[place].output_bytes * examples == part.output_bytes]
        ends.append((fits[-1] if fits else last[number]) + 1)
    return tuple(ends)
