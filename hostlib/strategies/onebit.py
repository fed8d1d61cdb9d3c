"""onebit: 1-bit quantisation with residual. Source: Seide et al. 2014; "Poseidon", section 5.3 (Poseidon-1bit)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "onebit"
SUMMARY = "fully connected layers' gradients go from everybody to everybody in one bit per weight; the rest as in wfbp"
MECHANISM = "ps"
EXACT = False


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.exchange import Broadcast
    from hostlib.training.layerwise import LayerWise
    from hostlib.training.onebit import OneBit

    return LayerWise(setting, lambda layers: Broadcast(setting.group, OneBit()), lambda layer: True)
