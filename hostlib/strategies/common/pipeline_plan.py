"""Plans of pipelines: who computes which micro-batch's passes when, and which tensors go from stage to stage. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from hostlib.pipelines.partitioner import LayerCost, partition
from hostlib.pipelines.pass_order import PassOrder, pass_order
from hostlib.pipelines.pipeline_options import AnyPipelineOptions, microbatch_size, worker_of
from hostlib.schedules.schedule import Compute, Operation, Receive, Schedule, Send, worker
from hostlib.strategies.plan import FLOAT_BYTES, Exchange, Plan, PlanContext, SummingGroup, still
from hostlib.traces.trace import Layer, Trace


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive layers of a model, on one worker of a pipeline.

    Attributes:
        forward_ns, backward_ns: of one micro-batch.
        output_bytes: of one micro-batch's output, and of its gradient.
        layers: their names.
        parameters: its trained ones.
        borrowed: trained ones of other parts that it uses, too.
    """

    forward_ns: int
    backward_ns: int
    output_bytes: int
    layers: tuple[str, ...]
    parameters: tuple[str, ...]
    borrowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedGradient:
    """A gradient of which two stages have a part each: both add them up, and keep a copy of the parameter."""

    stages: tuple[int, int]
    parameter: str
    bytes: int


def pipeline_plan(name: str, trace: Trace, context: PlanContext, options: AnyPipelineOptions) -> Plan:
    """Plan one iteration of the pipeline strategy of that name: the passes, then the sums of each stage's gradients.

    A micro-batch takes its share of the batch's time, and messages do not keep their sender from computing.

    Raises:
        HostlibError: the model's layers are unknown or too few, or its batch cannot be cut into as many micro-batches.
    """
    stages = options.stages
    order = pass_order(name, stages, options.microbatches, options.chunks)
    examples = microbatch_size(options, context.batch)
    parts = tuple(parts_of(trace, context, order.parts, examples, options.recompute))
    shared = _shared(parts, stages, {p.name: p.bytes for p in trace.parameters})
    replicas = context.workers // stages
    groups = []
    for stage in range(stages):
        own = [name for part in parts[stage::stages] for name in part.parameters]
        copies = [each.parameter for each in shared if each.stages[1] == stage]
        members = tuple(worker_of(stage, replica, replicas) for replica in range(replicas))
        groups.append(SummingGroup(members, (*own, *copies)))
    return Plan(still(trace), blocking=(passes(order, parts, replicas, shared),), groups=tuple(groups))


def _shared(parts: Sequence[Part], stages: int, sizes: Mapping[str, int]) -> tuple[SharedGradient, ...]:
    """The parameters of one stage that another one uses, too."""
    owner = {name: number % stages for number, part in enumerate(parts) for name in part.parameters}
    return tuple(
        SharedGradient((owner[name], number % stages), name, sizes[name])
        for number, part in enumerate(parts)
        for name in part.borrowed
        if owner[name] != number % stages
    )


def parts_of(trace: Trace, context: PlanContext, count: int, examples: int, recompute: bool) -> list[Part]:
    """Cut a model into parts whose slowest is as fast as possible.

    It is cut only where one tensor crosses: not within residual blocks or branches, if the layers tell.

    Args:
        examples: of a micro-batch.
        recompute: the backward pass computes the forward pass again.

    Raises:
        HostlibError: the layers are unknown, or cannot be cut into so many parts.
    """
    crossing = {x.name: x.output if x.crossing is None else x.crossing for x in context.known_layers()}
    outputs = {name: elements for name, elements in crossing.items() if elements}
    borrowed = {layer.name: layer.borrowed for layer in context.layers}
    trained = {p.name: p.layer for p in trace.parameters if p.trained}
    blocks: list[list[Layer]] = [[]]
    for layer in trace.layers:
        blocks[-1].append(layer)
        if layer.name in outputs:
            blocks.append([])
    *blocks, behind = blocks
    blocks[-1] += behind
    made = []
    for block in blocks:
        forward_ns = sum(layer.forward_ns for layer in block)
        backward_ns = sum(layer.backward_ns for layer in block) + recompute * forward_ns
        output = next((outputs[layer.name] for layer in reversed(block) if layer.name in outputs), 0)
        made.append(LayerCost(forward_ns, backward_ns, FLOAT_BYTES * output * examples, 0))
    share = examples / context.batch
    firsts = (0, *partition(made, count).cuts, len(made))
    parts = []
    for first, end in pairwise(firsts):
        names = tuple(layer.name for block in blocks[first:end] for layer in block)
        parts.append(
            Part(
                round(share * sum(cost.forward_ns for cost in made[first:end])),
                round(share * sum(cost.backward_ns for cost in made[first:end])),
                round(made[end - 1].activation_bytes),
                names,
                tuple(name for name, layer in trained.items() if layer in names),
                tuple(used for name in names for used in borrowed.get(name, ())),
            )
        )
    return parts


@lru_cache(maxsize=8)  # plans that differ in how gradients are summed have the same
def passes(
    order: PassOrder, parts: tuple[Part, ...], replicas: int, shared: tuple[SharedGradient, ...] = ()
) -> Exchange:
    """Exchange of pipelines' passes: what workers compute, and the messages between them.

    Its pieces are each part's outputs and their gradients, by micro-batch, then the halves of shared gradients, which
    are summed as by a ring of two; all pipelines have the same.
    """
    stages, count, last = len(order.workers), order.microbatches, order.parts - 1
    nodes: dict[str, tuple[Operation, ...]] = {}

    def piece(backward: bool, part: int, microbatch: int) -> int:
        """Of a part's output, or of that output's gradient."""
        return (2 * part + backward) * count + microbatch

    for stage, mine in enumerate(order.workers):
        for replica in range(replicas):
            before, after = (worker(worker_of((stage + way) % stages, replica, replicas)) for way in (-1, 1))
            operations: list[Operation] = []
            for each in mine:
                part, microbatch = each.part, each.microbatch
                inward = piece(False, part - 1, microbatch), piece(True, part - 1, microbatch)
                outward = piece(False, part, microbatch), piece(True, part, microbatch)
                duration_ns = parts[part].backward_ns if each.backward else parts[part].forward_ns
                compute = Compute((outward if part < last else inward)[each.backward], duration_ns)
                if each.backward:
                    operations += [Receive(after, outward[1], False)] if part < last else []
                    operations += [compute]
                    operations += [Send(before, inward[1])] if part > 0 else []
                else:
                    operations += [Receive(before, inward[0], False)] if part > 0 else []
                    operations += [compute]
                    operations += [Send(after, outward[0])] if part < last else []
            for number, gradient in enumerate(shared):
                if stage in gradient.stages:
                    place = gradient.stages.index(stage)
                    other = worker(worker_of(gradient.stages[1 - place], replica, replicas))
                    kept, given = (2 * (last * count + number) + half for half in (place, 1 - place))
                    operations += [Send(other, given), Receive(other, kept, True)]
                    operations += [Send(other, kept), Receive(other, given, False)]
            nodes[worker(worker_of(stage, replica, replicas))] = tuple(operations)
    sizes = tuple(part.output_bytes for part in parts[:-1] for _ in range(2 * count))
    sizes += tuple(each.bytes // 2 for each in shared for _ in range(2))
    return Exchange(order.name, Schedule(order.name, stages * replicas, len(sizes), nodes), sizes)
