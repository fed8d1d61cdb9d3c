"""What all operations of a process group of the backend have in common, however each is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch._C._dynamo import eval_frame
from torch._C._profiler import _RecordFunctionFast

from hostlib.errors import FabricError, JoinError, MissingRankError, RunError
from hostlib.pytorch.flight_recorder import FlightRecorder
from hostlib.pytorch.group_traffic import tensors_in
from hostlib.pytorch.torch_errors import torch_errors

FAILURES = (FabricError, JoinError, MissingRankError, RunError)  # all others refuse arguments
NOT_RECORDED = ("recv", "send")  # ranks number collectives alone alike


def begins(name: str) -> Callable[[Callable[..., dist.Work]], Callable[..., dist.Work]]:
    """Decorate a method that begins an operation: torch calls it with the interpreter's lock held, from Python or C++.

    It raises netfold's errors as torch's, and torch.compile leaves it, and what it calls, alone. torch's profiler and
    execution traces show it, and the flight recorder has an entry for it, if it is on.

    Args:
        name: of the operation, as torchfrtrace knows it.
    """

    def decorate(method: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
        @wraps(method)
        def begin_operation(self: Any, *arguments: Any, **options: Any) -> dist.Work:
            with torch_errors(), _shown(name, self, arguments):
                if self.recorder is None or name in NOT_RECORDED:
                    return method(self, *arguments, **options)
                return _recorded(self.recorder, name, method, self, *arguments, **options)

        leave_uncompiled(begin_operation)
        return begin_operation

    return decorate


def _shown(name: str, group: dist.ProcessGroup, arguments: tuple[Any, ...]) -> _RecordFunctionFast:
    """An entry of torch's profiler and of its execution traces, if one of them is on."""
    tensors = [tensor for tensor in tensors_in(arguments[:2])]
    parameters = {"Group name": group.group_name, "Group rank": group.rank(), "Group size": group.size()}
    return _RecordFunctionFast(f"netfold::{name}", tensors, parameters)


def _places(arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Where results go, and what they are made of: the first two arguments, or the first one is both."""
    first = arguments[0] if arguments else None
    second = arguments[1] if len(arguments) > 1 else None
    return first, second if any(True for _ in tensors_in([second])) else first


def _recorded(
    recorder: FlightRecorder, name: str, method: Callable[..., dist.Work], group: Any, *arguments: Any, **options: Any
) -> dist.Work:
    entry = recorder.begin(group, name, group.timeout_s, *_places(arguments))
    try:
        work = method(group, *arguments, **options)
    except FAILURES:
        recorder.fail()
        raise
    except Exception:
        recorder.take_back(entry)
        raise
    recorder.follow(entry, work)
    return work


def leave_uncompiled(function: Any) -> None:
    """Have torch.compile run a function, and all that it calls, as it is.

    DDP's C++ calls the group within the frame of a compiled model, so that torch would compile the group's insides,
    and fail. torch.compiler.disable does the same, but imports the compiler, which takes seconds, also where
    nobody compiles.
    """
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
