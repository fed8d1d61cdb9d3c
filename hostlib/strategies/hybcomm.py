"""hybcomm: hybrid communication. Source: "Poseidon", section 3.2, algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.poseidon import cheaper, mechanism_cost

if TYPE_CHECKING:
    from hostlib.training.connected import Connected
    from hostlib.training.setting import Setting, Trainer

NAME = "hybcomm"
SUMMARY = (
    "each fully connected layer by sufficient factors or by the mechanism, whichever carries less; the rest as in wfbp"
)
MECHANISM = "ps"


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast
    from hostlib.training.layerwise import LayerWise

    def choose(layer: Connected) -> bool:
        matrix, workers = (layer.shape.outputs, layer.shape.inputs), setting.group.world_size
        dense = mechanism_cost(setting.mechanism, workers, matrix[0] * matrix[1])
        return cheaper(matrix, layer.vectors, workers, dense) == "SFB"

    return LayerWise(setting, lambda layers: Broadcast(setting.group, Factors()), choose)
