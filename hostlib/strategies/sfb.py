"""sfb: sufficient factor broadcasting. Source: "Poseidon", section 2.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.plan import Plan, Situation, by_layers, factors
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "sfb"
SUMMARY = "fully connected layers' sufficient factors go from everybody to everybody; the rest as in wfbp"
MECHANISM = "ps"
OWN_MESSAGES = True


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast
    from hostlib.training.layerwise import LayerWise

    return LayerWise(setting, lambda layers: Broadcast(setting.group, Factors()), lambda layer: True)


def plan(trace: Trace, situation: Situation) -> Plan:
    return by_layers(trace, situation, lambda _, layer: factors(layer, situation))
