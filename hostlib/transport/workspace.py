"""Memory that a thread uses for one tensor after the other."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """As much as the largest tensor so far has needed.

    The system maps fresh memory page by page while it is first written to, in the middle of a collective.
    """

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """A flat tensor (count,) of any values; what was taken before is its memory, too."""
        size = count * dtype.itemsize
        if size > self._bytes.numel():
            self._bytes = torch.empty(size, dtype=torch.uint8)
        return self._bytes[:size].view(dtype)
