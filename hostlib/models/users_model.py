"""Inspect a user's model, MODULE:FACTORY, for those that do not load torch otherwise."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from hostlib.errors import ContentsError, ModelError

if TYPE_CHECKING:
    from hostlib.models.inspection import Inspected


def inspect_model(text: str, shape: tuple[int, ...] | None = None) -> Inspected:
    """Inspect a model without weights; with weights, on the CPU, if it depends on its tensors' values.

    The folder in which the command was started is searched for MODULE, too.

    Args:
        shape: of one example [the model's attribute input_shape, or 3x224x224].

    Raises:
        ModelError: PyTorch is not installed, the factory fails, or the model rejects such input.
    """
    if importlib.util.find_spec("torch") is None:
        raise ModelError(
            f"{text} is inspected by PyTorch, which is not installed: pip install 'netfold[train]'; "
            "the zoo's networks and traces do not need it"
        )
    from hostlib.models.inspection import load

    try:
        return load(text, shape)
    except ContentsError:
        return load(text, shape, with_weights=True)
