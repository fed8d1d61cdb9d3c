"""sfb: sufficient factor broadcasting. Source: "Poseidon", section 2.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.strategies.plan import Plan, PlanContext, by_layers, factors
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "sfb"


@dataclass(frozen=True, slots=True)
class Options:
    """Options after the name.

    Attributes:
        multicast: a worker sends its factors once, to the switch, which multicasts them.
    """

    multicast: bool = False


def needs_fabric(options: Options) -> bool:
    return options.multicast


def trainer(context: TrainerContext, options: Options) -> Trainer:
    from hostlib.strategies.common.gradient_exchange import Broadcast, ByPeers, BySwitch
    from hostlib.strategies.common.layerwise import LayerWise
    from hostlib.strategies.common.linear_factors import Factors

    # A single worker has no peers.
    by_switch = options.multicast and context.rank_context.world_size > 1
    way = BySwitch(context.another_multicast()) if by_switch else ByPeers(context.another_transport())
    return LayerWise(context, Broadcast(context.rank_context, way, Factors()), lambda layer: True)


def plan(trace: Trace, context: PlanContext, options: Options) -> Plan:
    return by_layers(trace, context, lambda _, layer: factors(layer, context, options.multicast))


SPEC = StrategySpec(
    NAME,
    "fully connected layers' sufficient factors go from everybody to everybody; the rest as in wfbp",
    plan,
    trainer,
    mechanism="ps",
    options=Options,
    own_messages=True,
    needs_fabric=needs_fabric,
)
