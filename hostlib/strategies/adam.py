"""adam: Project Adam's way. Source: Chilimbi et al. 2014; "Poseidon", sections 3.2 and 5.3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import HostlibError
from hostlib.layers import LayerInfo
from hostlib.plan import Exchange, Plan, Situation, by_layers, by_server, factor_bytes
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "adam"
SUMMARY = "fully connected layers' sufficient factors go to the server that owns the layer, and whole matrices back"
MECHANISM = "ps"
OWN_MESSAGES = True
SHARES_HOSTS = SHARES_WORKERS_HOSTS = True


@dataclass(frozen=True, slots=True)
class Options:
    """What may follow its name.

    Attributes:
        servers: processes that own fully connected layers, in turn, the last layer's first.
    """

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise HostlibError(f"{NAME}:servers must be at least 1, not {self.servers}")


def servers(options: Options) -> int:
    return options.servers


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Owners
    from hostlib.training.layerwise import LayerWise

    exchange = Owners(setting.group, setting.another_peers(), Factors(), options.servers)
    return LayerWise(setting, exchange, lambda layer: True)


def serve(setting: Setting, number: int, options: Options) -> None:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import serve as own

    own(setting, number, Factors(), options.servers)


def plan(trace: Trace, situation: Situation, options: Options) -> Plan:
    def owned(number: int, layer: LayerInfo) -> Exchange:
        owner = situation.servers[number % options.servers]
        return by_server(layer.name, situation.workers, owner, factor_bytes(layer, situation.batch), 4 * layer.params)

    return by_layers(trace, situation, owned)
