"""A network's layers as the training strategies see them: parameters, output sizes and FLOPs. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["conv", "pool", "fc", "embedding", "attention", "norm", "other"]
Family = Literal["cnn", "transformer"]


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One layer that counts, in the order in which the model constructs them.

    Convolutions, pools and fully connected layers count, and their equivalents in other families (embeddings,
    attention). Flattening, dropout, activations, sums and concatenations do not. Batch or group normalisation belongs
    to the convolution constructed before it. Without one, or by layer, it counts itself ("norm"), as does any other
    layer with parameters ("other").

    Attributes:
        index: from 1, over the layers that count.
        name: the module's, as in named_modules().
        params: number of trained elements, with bias and normalisation; 0 for a pool.
        output: elements of its output for one example.
        flops: multiplications and additions of one example's forward pass.
        matrix: (outputs M, inputs N) of a fully connected layer's weights, if no other layer uses them; None for
            others.
        members: names of its own parameters, as in named_parameters().
        crossing: elements that go on from here, for one example: of its output or, where branches end, of all of
            theirs. 0 if that is more than one tensor, as in a residual block. None: unknown.
        borrowed: names of other layers' parameters that it uses, too, where that is known.
    """

    index: int
    name: str
    kind: Kind
    params: int
    output: int
    flops: int
    matrix: tuple[int, int] | None
    members: tuple[str, ...]
    crossing: int | None = None
    borrowed: tuple[str, ...] = ()


def family_of(layers: Iterable[tuple[str, int]]) -> Family:
    """Whether convolutions have half of a model's FLOPs or more ("cnn"), or other matrix products do ("transformer").

    Args:
        layers: kind and FLOPs of each.
    """
    convolutions = others = 0
    for kind, flops in layers:
        if kind == "conv":
            convolutions += flops
        else:
            others += flops
    return "cnn" if convolutions and convolutions >= others else "transformer"
