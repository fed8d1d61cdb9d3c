"""hybcomm: hybrid communication. Source: "Poseidon", section 3.2, algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.common.sync_cost import cheaper, mechanism_cost
from hostlib.strategies.plan import Exchange, Plan, PlanContext, by_layers, factors, vectors
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.common.linear_factors import Connected
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "hybcomm"


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.common.gradient_exchange import Broadcast, ByPeers
    from hostlib.strategies.common.layerwise import LayerWise
    from hostlib.strategies.common.linear_factors import Factors

    def choose(layer: Connected) -> bool:
        matrix, workers = (layer.shape.outputs, layer.shape.inputs), context.rank_context.world_size
        dense = mechanism_cost(context.mechanism, workers, matrix[0] * matrix[1])
        return cheaper(matrix, layer.vectors, workers, dense) == "SFB"

    return LayerWise(context, Broadcast(context.rank_context, ByPeers(context.another_transport()), Factors()), choose)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    def cheapest(_: int, layer: LayerInfo) -> Exchange | None:
        outputs, inputs = layer.matrix or (0, 0)
        dense = mechanism_cost(context.mechanism, context.workers, outputs * inputs)
        passed = vectors(layer, context.batch)
        way = cheaper((outputs, inputs), passed, context.workers, dense)
        return factors(layer, context) if way == "SFB" else None

    return by_layers(trace, context, cheapest)


SPEC = StrategySpec(
    NAME,
    "each fully connected layer by sufficient factors or by the mechanism, whichever carries less; the rest as in wfbp",
    plan,
    trainer,
    mechanism="ps",
    own_messages=True,
)
