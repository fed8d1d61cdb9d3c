"""sfb: sufficient factor broadcasting. Source: "Poseidon", section 2.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.plan import Plan, Situation, by_layers, factors
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "sfb"
SUMMARY = "fully connected layers' sufficient factors go from everybody to everybody; the rest as in wfbp"
MECHANISM = "ps"
OWN_MESSAGES = True


@dataclass(frozen=True, slots=True)
class Options:
    """How factors travel.

    Attributes:
        multicast: a worker sends them once, to the switch, which multicasts them.
    """

    multicast: bool = False


def needs_fabric(options: Options) -> bool:
    return options.multicast


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast, ByPeers, BySwitch
    from hostlib.training.layerwise import LayerWise

    # A single worker has nobody to send anything to.
    by_switch = options.multicast and setting.group.world_size > 1
    way = BySwitch(setting.another_multicast()) if by_switch else ByPeers(setting.another_peers())
    return LayerWise(setting, Broadcast(setting.group, way, Factors()), lambda layer: True)


def plan(trace: Trace, situation: Situation, options: Options) -> Plan:
    return by_layers(trace, situation, lambda _, layer: factors(layer, situation, options.multicast))
