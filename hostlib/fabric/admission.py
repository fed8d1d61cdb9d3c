"""A group's places in a job: all ranks are admitted, or all raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hostlib.errors import JoinError

LINE_BYTES = 1024  # of an error


def admitted_alike(gloo: Any, world_size: int) -> Callable[[JoinError | None], None]:
    """Return what each rank calls once it has been given its place, or with the error that refused it.

    It returns on all ranks if all have places; else it raises the same JoinError on all of them.

    Args:
        gloo: torch.distributed.ProcessGroupGloo over the ranks; used by the calling thread alone.
    """

    def admitted(refused: JoinError | None) -> None:
        line = b"" if refused is None else str(refused).encode()[:LINE_BYTES] or b"refused"
        mine = torch.zeros(LINE_BYTES, dtype=torch.uint8)
        mine[: len(line)] = torch.tensor(list(line), dtype=torch.uint8)
        everybody = [torch.empty_like(mine) for _ in range(world_size)]
        gloo.allgather([everybody], [mine]).wait()
        for rank, each in enumerate(everybody):
            text = bytes(each.tolist()).rstrip(b"\0").decode(errors="replace")
            if text:
                raise JoinError(f"rank {rank} has no place in the fabric, so no rank of its group sums: {text}")

    return admitted
