"""cgdp: accumulate gradients on the host's CPUs during the backward pass, chunk of layers by chunk of layers.

Source: "Involving CPUs into Multi-GPU Deep Learning", sections 3.1 and 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.builtin.cgdp.cgdp_options import Options
from hostlib.strategies.builtin.cgdp.cost_model import (
    NS_PER_S,
    LayerCost,
    costs_of,
    partition,
    predict,
    search,
    trained_layers,
)
from hostlib.strategies.plan import GradientExchange, Plan, PlanContext, at_the_host, gradients, pausing
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "cgdp"


def trainer(context: TrainerContext, options: Options) -> Trainer:
    from hostlib.strategies.builtin.cgdp.cgdp_trainer import HostAccumulating

    return HostAccumulating(context, options)


def plan(trace: Trace, context: PlanContext, options: Options) -> Plan:
    """If all workers are on one host (`shm`), the host adds one chunk at a time, as in the cost model; else the
    mechanism sums.
    """
    layers = _trained(trace, context)
    costs = costs_of(trace, options.sync / 1e6, options.accumulation * 1e9, options.broadcast * 1e9, layers)
    made = partition(len(layers), options.chunk or _found(costs, options))
    chunks = tuple(tuple(name for layer in chunk for name in layers[layer - 1]) for chunk in made)
    trace = pausing(trace, chunks, round(options.sync * 1e3))
    if not context.mechanism.one_host:
        return Plan(trace, chunks=chunks)
    sizes = {p.name: p.bytes for p in trace.parameters}
    carried = []
    for members, names in zip(made, chunks, strict=True):
        adding_s = sum(costs[layer - 1].accumulation + costs[layer - 1].broadcast for layer in members)
        size = sum(sizes[name] for name in names)
        name = f"layers {members[0]} to {members[-1]}"
        carried.append(GradientExchange(names, at_the_host(name, context.workers, size, round(adding_s * NS_PER_S))))
    return Plan(trace, tuple(carried))


def _trained(trace: Trace, context: PlanContext) -> tuple[tuple[str, ...], ...]:
    """The parameters of each trained layer, in forward order.

    A normalisation belongs to the layer before it, if the model's layers are known.
    """
    sent = set(gradients(trace))
    layers = [layer.members for layer in context.layers] or trained_layers(trace)
    kept = (tuple(name for name in names if name in sent) for names in layers)
    return tuple(names for names in kept if names)


def _found(costs: list[LayerCost], options: Options) -> int:
    """The chunk size that the search finds if steps take as long as the cost model predicts."""
    sizes = range(1, len(costs) + 1)
    lapses_s = {size: predict(costs, partition(len(costs), size), in_turn=True).total for size in sizes}
    return search(lapses_s, options.step, options.range, options.interval, len(costs)).best


SPEC = StrategySpec(
    NAME,
    "chunks of layers are accumulated on the host during the backward pass; the first steps find a chunk size",
    plan,
    trainer,
    mechanism="shm",
    options=Options,
)
