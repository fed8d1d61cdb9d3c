"""sfb: sufficient factor broadcasting. Source: "Poseidon", section 2.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import ScheduleError
from hostlib.plan import Plan, Situation, by_layers, factors
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "sfb"
SUMMARY = "fully connected layers' sufficient factors go from everybody to everybody; the rest as in wfbp"
MECHANISM = "ps"
OWN_MESSAGES = True
ONLY_SIMULATED = "sfb:multicast cannot run on hosts: there the fabric multicasts sums alone; it can be simulated"


@dataclass(frozen=True, slots=True)
class Options:
    """How factors travel.

    Attributes:
        multicast: a worker sends them once, to the switch, which multicasts them. Only in the simulator: the slot protocol
            multicasts sums.
    """

    multicast: bool = False


def trainer(setting: Setting, options: Options) -> Trainer:
    if options.multicast:
        raise ScheduleError(ONLY_SIMULATED)
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast
    from hostlib.training.layerwise import LayerWise

    exchange = Broadcast(setting.group, setting.another_peers(), Factors())
    return LayerWise(setting, exchange, lambda layer: True)


def plan(trace: Trace, situation: Situation, options: Options) -> Plan:
    return by_layers(trace, situation, lambda _, layer: factors(layer, situation, options.multicast))
