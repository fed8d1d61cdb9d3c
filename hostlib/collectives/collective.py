"""The interface of collectives."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Collective(Protocol):
    """Sums tensors over the ranks. All ranks must request the same tensors in the same order."""

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        """Sum or average a tensor in place; the future holds it, or a HostlibError.

        Args:
            future: is completed and returned, where a tensor in the host's memory has one already.
        """
        ...

    def stats(self) -> dict[str, int] | None:
        """The packet engine's counters; None without an engine."""
        ...

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric."""
        ...

    def close(self, graceful: bool = True) -> None: ...
