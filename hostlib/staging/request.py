"""Requests to sum a tensor, or part of one, in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.transport.refusals import refuse

# dtypes that are summed, and the dtype that each travels in
DTYPES = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
}


@dataclass(slots=True)
class ReduceRequest:
    """Part of a tensor in host memory, to be summed.

    Attributes:
        values: summed over the ranks, in place.
        deliver: called with the result in place; raises HostlibError if it cannot be passed on.
        complete: called after `deliver`: completes the future, and so runs its callbacks, which are the user's.
        refuse: likewise on failure, and after a `deliver` that raised.
    """

    values: Tensor
    average: bool
    deliver: Callable[[], None]
    complete: Callable[[], None]
    refuse: Callable[[Exception], None]

    def end(self, error: Exception | None) -> None:
        """Complete the future, or refuse it with an error."""
        try:
            if error is None:
                self.complete()
        except Exception as failed:  # of the device, whose event the future records
            error = failed
        if error is not None:
            self.refuse(error)


def wire_dtype(tensor: Tensor, average: bool) -> torch.dtype:
    """The dtype that a tensor's values travel in.

    Raises:
        HostlibError: such tensors are not summed, or not averaged.
    """
    if tensor.dtype not in DTYPES:
        raise UnknownNameError("dtype", str(tensor.dtype), map(str, DTYPES))
    if average and not tensor.is_floating_point():
        raise HostlibError(f"{tensor.dtype} tensors can be summed, not averaged")
    return DTYPES[tensor.dtype]


def host_request(tensor: Tensor, dtype: torch.dtype, average: bool, future: torch.futures.Future[Any]) -> ReduceRequest:
    """Request for a tensor in host memory; without a copy if it has that dtype and is contiguous."""
    with torch.no_grad():
        work = tensor.detach().to(dtype, memory_format=torch.contiguous_format).contiguous()

    def deliver() -> None:
        if work.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(work)

    return ReduceRequest(work, average, deliver, lambda: future.set_result(tensor), lambda error: refuse(future, error))
