"""What all operations of a process group of the backend have in common, however each is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch._C._dynamo import eval_frame

from hostlib.pytorch.torch_errors import torch_errors


def begins(method: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    """A method that begins an operation: torch calls it with the interpreter's lock held, from Python or C++.

    It raises netfold's errors as torch's, and torch.compile leaves it, and what it calls, alone.
    """

    @wraps(method)
    def begin_operation(self: dist.ProcessGroup, *arguments: Any, **options: Any) -> dist.Work:
        with torch_errors():
            return method(self, *arguments, **options)

    leave_uncompiled(begin_operation)
    return begin_operation


def leave_uncompiled(function: Any) -> None:
    """Have torch.compile run a function, and all that it calls, as it is.

    DDP's C++ calls the group within the frame of a compiled model, so that torch would compile the group's insides,
    and fail. torch.compiler.disable does the same, but imports the compiler, which takes seconds, also where
    nobody compiles.
    """
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
