"""A DDP communication hook that averages each bucket with a mechanism while the backward pass goes on.

Source: torch.distributed.algorithms.ddp_comm_hooks, for the signature (state, bucket) -> Future.
"""

# No postponed annotations here: DDP inspects those of the hook.
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from hostlib.collectives.collective import Collective
from hostlib.pytorch.reduction import require_summable
from hostlib.pytorch.step_times import StepTimes


@dataclass(slots=True)
class HookState:
    """State of the hook.

    Attributes:
        buckets: sizes (elements) of the buckets it was given.
        step: when the buckets of the last backward pass were in flight.
    """

    collective: Collective
    buckets: list[int] = field(default_factory=list)
    step: StepTimes = field(default_factory=StepTimes)


def average_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket's gradients over the ranks, in place.

    Example:
        ddp.register_comm_hook(HookState(collective), average_hook)

    Raises:
        HostlibError: the gradients are sparse.
    """
    gradients = bucket.buffer()
    require_summable("gradients", gradients)
    if bucket.index() == 0:
        state.step = StepTimes()
        # Runs once all gradients are computed, before DDP's own callback, which is queued later, waits for the buckets.
        Variable._execution_engine.queue_callback(state.step.backward_ended)
    state.buckets.append(gradients.numel())
    span = state.step.begin(bucket.index(), gradients.nbytes)

    def done(average: torch.futures.Future[Tensor]) -> Tensor:
        span.done_ns = time.perf_counter_ns()
        return average.value()

    return state.collective.allreduce(gradients, average=True).then(done)
