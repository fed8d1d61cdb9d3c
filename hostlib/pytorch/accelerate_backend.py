"""Let accelerate, and so transformers' Trainer, take the backend's name.

accelerate knows a list of backends, and on CPUs replaces any other name by "gloo", which it then refuses for not being
the name that it was given. So the one method that chooses is told of one more name.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

MARK = "_netfold"


def teach_accelerate(name: str) -> None:
    """Let `PartialState(backend=name)`, and `TrainingArguments(ddp_backend=name)`, choose the backend; does nothing
    unless accelerate has been imported.
    """
    state = sys.modules.get("accelerate.state")
    if state is None or hasattr(state.PartialState._prepare_backend, MARK):
        return
    prepare = state.PartialState._prepare_backend

    @wraps(prepare)
    def prepared(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        chosen, kind = prepare(self, cpu, sagemaker_dp, None if backend == name else backend)
        return (name if backend == name and chosen is not None else chosen), kind

    setattr(prepared, MARK, True)
    state.PartialState._prepare_backend = prepared
