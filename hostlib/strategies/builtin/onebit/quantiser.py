"""1-bit quantisation with residual: one bit for each weight, and two numbers for each column.

Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3.1; "Poseidon", section 5.3.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hostlib.strategies.common.linear_factors import Connected, Shape

BITS = 8


class OneBit:
    """Quantises gradients plus residuals to their signs and, for each column, the means of negative and other values.

    The quantisation error is the residual of the next step. A rank decodes its own part as the others do, so all have
    the same sum.
    """

    with_bias = False

    def __init__(self) -> None:
        self._residuals: dict[int, Tensor] = {}

    def encode(self, layer: Connected) -> Tensor:
        gradient = layer.module.weight.grad
        assert gradient is not None
        wanted = gradient + self._residuals.get(id(layer), 0)
        part = quantised(wanted)
        self._residuals[id(layer)] = wanted - restored(part, wanted.shape[0], wanted.shape[1])
        return part

    def empty(self, shape: Shape, vectors: int) -> Tensor:
        return torch.empty(2 * 4 * shape.inputs + -(-shape.outputs * shape.inputs // BITS), dtype=torch.uint8)

    def average(self, shape: Shape, parts: list[Tensor]) -> Tensor:
        total = torch.zeros(shape.outputs, shape.inputs)
        for part in parts:
            total += restored(part, shape.outputs, shape.inputs)
        return total.div_(len(parts)).view(-1)


def quantised(values: Tensor) -> Tensor:
    """float32 (outputs, inputs) -> uint8: means of the columns' negative and other values, then the signs."""
    negative = values < 0
    counts = negative.sum(0)
    # For columns without such values, any mean will do.
    below = torch.where(negative, values, 0).sum(0) / counts.clamp(min=1)
    above = torch.where(negative, 0, values).sum(0) / (len(values) - counts).clamp(min=1)
    means = torch.cat([below, above])
    return torch.cat([means.view(torch.uint8), torch.from_numpy(np.packbits(negative.numpy()))])


def restored(part: Tensor, outputs: int, inputs: int) -> Tensor:
    """Decode the output of `quantised`."""
    below, above = part[: 8 * inputs].view(torch.float32).view(2, inputs)
    bits = np.unpackbits(part[8 * inputs :].numpy(), count=outputs * inputs).reshape(outputs, inputs)
    return torch.where(torch.from_numpy(bits).bool(), below, above)
