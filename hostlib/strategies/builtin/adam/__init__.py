"""adam: sufficient factors up, matrices down, as in Project Adam. Source: Chilimbi et al. 2014; "Poseidon", sections
3.2 and 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import HostlibError
from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.plan import Exchange, Plan, PlanContext, by_layers, by_server, factor_bytes
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "adam"


@dataclass(frozen=True, slots=True)
class Options:
    """Options after the name.

    Attributes:
        servers: number of processes that own fully connected layers, assigned in turn from the last layer on.
    """

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise HostlibError(f"{NAME}:servers must be at least 1, not {self.servers}")


def servers(options: Options) -> int:
    return options.servers


def trainer(context: TrainerContext, options: Options) -> Trainer:
    from hostlib.strategies.common.gradient_exchange import Owners
    from hostlib.strategies.common.layerwise import LayerWise
    from hostlib.strategies.common.linear_factors import Factors

    exchange = Owners(context.rank_context, context.another_transport(), Factors(), options.servers)
    return LayerWise(context, exchange, lambda layer: True)


def serve(context: TrainerContext, number: int, options: Options) -> None:
    from hostlib.strategies.common.gradient_exchange import serve as own
    from hostlib.strategies.common.linear_factors import Factors

    own(context, number, Factors(), options.servers)


def plan(trace: Trace, context: PlanContext, options: Options) -> Plan:
    def owned(number: int, layer: LayerInfo) -> Exchange:
        owner = context.servers[number % options.servers]
        return by_server(layer.name, context.workers, owner, factor_bytes(layer, context.batch), 4 * layer.params)

    return by_layers(trace, context, owned)


SPEC = StrategySpec(
    NAME,
    "fully connected layers' sufficient factors go to the server that owns the layer, and whole matrices back",
    plan,
    trainer,
    mechanism="ps",
    options=Options,
    own_messages=True,
    servers=servers,
    serve=serve,
    shares_hosts=True,
    shares_workers_hosts=True,
)
