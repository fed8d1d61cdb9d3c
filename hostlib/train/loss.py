"""The training loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

AUXILIARY_WEIGHT = 0.4


def loss_of(outputs: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Cross entropy, averaged over the examples and, if labels are per position, over the positions.

    Args:
        outputs: logits, (N, classes) or (N, T, classes); a pair if there is an auxiliary head.
        labels: int64 (N,) or (N, T).

    Source: Szegedy et al. 2015, "Rethinking the Inception Architecture", as in slim (the auxiliary head's weight).
    """
    if isinstance(outputs, tuple):
        scores, auxiliary = outputs
        return loss_of(scores, labels) + AUXILIARY_WEIGHT * loss_of(auxiliary, labels)
    return cross_entropy(outputs.flatten(0, -2), labels.flatten())
