"""onebit: 1-bit quantisation with residual. Source: Seide et al. 2014; "Poseidon", section 5.3 (Poseidon-1bit)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.plan import Exchange, Plan, PlanContext, by_layers, everybody_to_everybody
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "onebit"


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.builtin.onebit.quantiser import OneBit
    from hostlib.strategies.common.gradient_exchange import Broadcast, ByPeers
    from hostlib.strategies.common.layerwise import LayerWise

    exchange = Broadcast(context.rank_context, ByPeers(context.another_transport()), OneBit())
    return LayerWise(context, exchange, lambda layer: True)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    def bits(_: int, layer: LayerInfo) -> Exchange:
        outputs, inputs = layer.matrix or (0, 0)
        return everybody_to_everybody(layer.name, context.workers, part_bytes(outputs, inputs))

    return by_layers(trace, context, bits, with_bias=False)


def part_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a matrix: two means for each column, and a bit for each weight."""
    return 2 * 4 * inputs + -(-outputs * inputs // 8)


SPEC = StrategySpec(
    NAME,
    "fully connected layers' gradients go from everybody to everybody in one bit per weight; the rest as in wfbp",
    plan,
    trainer,
    mechanism="ps",
    exact=False,
    own_messages=True,
)
