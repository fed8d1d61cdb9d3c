"""Hooks that do not keep a trainer alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import Tensor


def when_complete(parameter: Tensor, method: Callable[..., None], *arguments: Any) -> None:
    """Have a bound method called whenever the backward pass has completed a parameter's gradient.

    torch's C++ library holds a parameter's hooks, and Python's collector does not see the circle from a hook to its
    trainer, to the model, to the parameter. What the trainer holds, connections among them, would stay for ever.

    Args:
        method: of an object that somebody else keeps.
        arguments: for the method; they must not lead to that object.
    """
    weak = WeakMethod(method)

    def call(_: Tensor) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    parameter.register_post_accumulate_grad_hook(call)
