"""onebit: 1-bit quantisation with residual. Source: Seide et al. 2014; "Poseidon", section 5.3 (Poseidon-1bit)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.layers import LayerInfo
from hostlib.plan import Exchange, Plan, Situation, by_layers, everybody_to_everybody
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "onebit"
SUMMARY = "fully connected layers' gradients go from everybody to everybody in one bit per weight; the rest as in wfbp"
MECHANISM = "ps"
EXACT = False
OWN_MESSAGES = True


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.exchange import Broadcast, ByPeers
    from hostlib.training.layerwise import LayerWise
    from hostlib.training.onebit import OneBit

    exchange = Broadcast(setting.group, ByPeers(setting.another_peers()), OneBit())
    return LayerWise(setting, exchange, lambda layer: True)


def plan(trace: Trace, situation: Situation) -> Plan:
    def bits(_: int, layer: LayerInfo) -> Exchange:
        outputs, inputs = layer.matrix or (0, 0)
        return everybody_to_everybody(layer.name, situation.workers, part_bytes(outputs, inputs))

    return by_layers(trace, situation, bits, with_bias=False)


def part_bytes(outputs: int, inputs: int) -> int:
    """Of a matrix: two means for each column, and a bit for each weight."""
    return 2 * 4 * inputs + -(-outputs * inputs // 8)
