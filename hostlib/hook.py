"""A DDP communication hook: each bucket is averaged by a mechanism while the backward pass goes on.

Source: torch.distributed.algorithms.ddp_comm_hooks, whose form this has: (state, bucket) -> Future.
"""

# No postponed annotations here: DDP inspects the hook's.
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collective import Collective


@dataclass(slots=True)
class HookState:
    """What the hook keeps: the collective, and the sizes (elements) of the buckets it was given."""

    collective: Collective
    buckets: list[int] = field(default_factory=list)


def average_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket's gradients over the ranks, in place.

    Example:
        ddp.register_comm_hook(HookState(collective), average_hook)
    """
    gradients = bucket.buffer()
    state.buckets.append(gradients.numel())
    return state.collective.allreduce(gradients, average=True)
