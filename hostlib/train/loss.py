"""What is made small."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

AUXILIARY_WEIGHT = 0.4


def loss_of(outputs: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Cross entropy, a mean over the examples, and over the places of each where these have labels of their own.

    Args:
        outputs: scores, (N, classes) or (N, T, classes); with those of an auxiliary head, a pair.
        labels: int64 (N,) or (N, T).

    Source: Szegedy et al. 2015, "Rethinking the Inception Architecture", as slim has it (the auxiliary head's weight).
    """
    if isinstance(outputs, tuple):
        scores, auxiliary = outputs
        return loss_of(scores, labels) + AUXILIARY_WEIGHT * loss_of(auxiliary, labels)
    return cross_entropy(outputs.flatten(0, -2), labels.flatten())
