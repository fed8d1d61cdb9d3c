"""Ranks confirm that their tensors have the same length and type, before a library or a schedule assumes so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import RunError
from hostlib.transport.rank_context import RankContext

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32)  # which are summed


class Agreement:
    """Confirms tensors; used by one thread. It does nothing unless the context asks for it.

    Args:
        gloo: that thread's group; None to make one.

    The packet engine's prologues say the same (docs/protocol.md), so what it sums needs no such message.
    """

    def __init__(self, context: RankContext, gloo: Any = None) -> None:
        self._context, self._gloo = context, gloo

    def confirm(self, elements: int, dtype: torch.dtype, average: bool) -> None:
        """Raise the same error on all ranks if their tensors differ.

        Raises:
            RunError: they do.
            RuntimeError: a rank does not answer.
        """
        most, least = self._extremes(elements, TYPES.index(dtype), average)
        if most != least:
            raise RunError(difference(most, least))

    def confirm_bytes(self, size: int) -> None:
        """The same for tensors whose values are only moved, whatever their type."""
        most, least = self._extremes(size)
        if most != least:
            raise RunError(
                f"the ranks exchange different tensors, of {least[0]} and of {most[0]} bytes: nothing was exchanged"
            )

    def _extremes(self, *mine: int) -> tuple[list[int], list[int]]:
        """The largest of the ranks' numbers, and the smallest."""
        if not self._context.in_script:
            return list(mine), list(mine)
        if self._gloo is None:
            self._gloo = self._context.another_gloo()
        numbers = torch.tensor(mine)
        extremes = torch.cat([numbers, -numbers])
        reduce_by_gloo(self._gloo, extremes, dist.ReduceOp.MAX)
        return extremes[: len(mine)].tolist(), (-extremes[len(mine) :]).tolist()


def reduce_by_gloo(gloo: Any, tensor: Tensor, how: Any) -> None:
    """Reduce a tensor over the ranks of a Gloo group, in place.

    Args:
        how: a torch.distributed.ReduceOp.

    Raises:
        RuntimeError: a rank does not answer.
    """
    options = dist.AllreduceOptions()
    options.reduceOp = how
    gloo.allreduce([tensor], options).wait()


def difference(most: Sequence[int], least: Sequence[int]) -> str:
    """Say how tensors differ, from the largest and the smallest of (elements, number of the type in TYPES, average)."""
    if most[0] != least[0]:
        what = f"of {least[0]} and of {most[0]} elements"
    elif most[1] != least[1]:
        what = f"of {TYPES[least[1]]} and of {TYPES[most[1]]}"
    else:
        what = "with SUM and with AVG"
    return f"the ranks sum different tensors, {what}: nothing was summed"
