"""Fully connected layers, and the forms in which their gradients are sent.

Source: "Poseidon", section 2.1: an example's gradient is the outer product of the layer's input u and its output's
gradient v, its sufficient factors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a fully connected layer's gradient.

    Attributes:
        bias: whether the bias's gradient is included.
    """

    outputs: int
    inputs: int
    bias: bool

    @property
    def elements(self) -> int:
        return self.outputs * (self.inputs + self.bias)


class Connected:
    """A fully connected layer of a model that records what passes through it.

    Attributes:
        inputs, gradients: u and v of the current pass, (vectors, features) each.
    """

    def __init__(self, module: nn.Linear) -> None:
        self.module = module
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []
        module.register_forward_hook(self._forward, with_kwargs=True)

    @property
    def shape(self) -> Shape:
        bias = self.module.bias is not None and self.module.bias.requires_grad
        return Shape(self.module.out_features, self.module.in_features, bias)

    @property
    def vectors(self) -> int:
        """Number of vectors in the forward pass: the pairs of factors that the pass will have."""
        return sum(len(vectors) for vectors in self.inputs)

    def reset(self) -> None:
        """Prepare for a forward pass."""
        self.inputs.clear()
        self.gradients.clear()

    def _forward(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        if torch.is_grad_enabled() and output.requires_grad:
            entered = arguments[0] if arguments else named["input"]
            self.inputs.append(entered.detach().reshape(-1, self.module.in_features))
            output.register_hook(self._backward)

    def _backward(self, gradient: Tensor) -> None:
        # If a layer is called several times, the last call is the first in the backward pass.
        self.gradients.insert(0, gradient.detach().reshape(-1, self.module.out_features))


def connected_layers(model: nn.Module) -> list[Connected]:
    """The fully connected layers with weights of their own, in backward order.

    If weights are shared, with an embedding for example, their gradient is not a product of factors.
    """
    uses = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    found = [m for m in model.modules() if type(m) is nn.Linear]
    return [Connected(m) for m in reversed(found) if m.weight.requires_grad and uses[id(m.weight)] == 1]


class Form(Protocol):
    """The form in which a layer's gradient is sent, and how ranks combine the parts.

    Attributes:
        with_bias: whether the bias's gradient is sent with the weights'.
    """

    with_bias: bool

    def encode(self, layer: Connected) -> Tensor:
        """Encode a rank's part as a flat tensor."""
        ...

    def empty(self, shape: Shape, vectors: int) -> Tensor:
        """An empty tensor for a part."""
        ...

    def average(self, shape: Shape, parts: list[Tensor]) -> Tensor:
        """The average gradient of all ranks' parts, flat, weights before bias; deterministic for a given order of
        parts.
        """
        ...


class Factors:
    """Sufficient factors: one matrix product of all ranks' factors gives the gradient over all their examples."""

    with_bias = True

    def encode(self, layer: Connected) -> Tensor:
        return torch.cat([*(u.reshape(-1) for u in layer.inputs), *(v.reshape(-1) for v in layer.gradients)])

    def empty(self, shape: Shape, vectors: int) -> Tensor:
        return torch.empty(vectors * (shape.inputs + shape.outputs))

    def average(self, shape: Shape, parts: list[Tensor]) -> Tensor:
        vectors = len(parts[0]) // (shape.inputs + shape.outputs)
        entered = torch.cat([part[: vectors * shape.inputs] for part in parts]).view(-1, shape.inputs)
        left = torch.cat([part[vectors * shape.inputs :] for part in parts]).view(-1, shape.outputs)
        made = torch.empty(shape.elements)
        weights = made[: shape.outputs * shape.inputs].view(shape.outputs, shape.inputs)
        torch.mm(left.t(), entered, out=weights)
        if shape.bias:
            torch.sum(left, 0, out=made[weights.numel() :])
        return made.div_(len(parts))
