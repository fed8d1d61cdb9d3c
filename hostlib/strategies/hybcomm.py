"""hybcomm: hybrid communication. Source: "Poseidon", section 3.2, algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.layers import LayerInfo
from hostlib.plan import Exchange, Plan, Situation, by_layers, factors, vectors
from hostlib.poseidon import cheaper, mechanism_cost
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.connected import Connected
    from hostlib.training.setting import Setting, Trainer

NAME = "hybcomm"
SUMMARY = (
    "each fully connected layer by sufficient factors or by the mechanism, whichever carries less; the rest as in wfbp"
)
MECHANISM = "ps"
OWN_MESSAGES = True


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast, ByPeers
    from hostlib.training.layerwise import LayerWise

    def choose(layer: Connected) -> bool:
        matrix, workers = (layer.shape.outputs, layer.shape.inputs), setting.group.world_size
        dense = mechanism_cost(setting.mechanism, workers, matrix[0] * matrix[1])
        return cheaper(matrix, layer.vectors, workers, dense) == "SFB"

    return LayerWise(setting, Broadcast(setting.group, ByPeers(setting.another_peers()), Factors()), choose)


def plan(trace: Trace, situation: Situation) -> Plan:
    def cheapest(_: int, layer: LayerInfo) -> Exchange | None:
        outputs, inputs = layer.matrix or (0, 0)
        dense = mechanism_cost(situation.mechanism, situation.workers, outputs * inputs)
        passed = vectors(layer, situation.batch)
        way = cheaper((outputs, inputs), passed, situation.workers, dense)
        return factors(layer, situation) if way == "SFB" else None

    return by_layers(trace, situation, cheapest)
