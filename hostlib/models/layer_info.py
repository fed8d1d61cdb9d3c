"""A network's layers as the training strategies see them: what each has to learn, hands on and costs. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["conv", "pool", "fc", "embedding", "attention", "norm", "other"]


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """One layer that counts, in the order in which the model makes them.

    Convolutions, pools and fully connected layers count, and what they are in other families (embeddings, attention);
    flattening, dropout, activations, sums and concatenations do not. A normalisation by batch or groups belongs to the
    convolution made before it; one without, or by layer, counts itself ("norm"), as does whatever else learns ("other").

    Attributes:
        index: from 1, over the layers that count.
        name: the module's, as named_modules() has it.
        params: trained elements, those of its bias and its normalisation included; 0 for a pool.
        output: elements that it hands on, of one example.
        flops: multiplications and additions of one example's forward pass.
        matrix: (outputs M, inputs N) of a fully connected layer's weights, if nothing else uses them; None for others.
        members: names of the parameters (named_parameters()) that are its own.
    """

    index: int
    name: str
    kind: Kind
    params: int
    output: int
    flops: int
    matrix: tuple[int, int] | None
    members: tuple[str, ...]
