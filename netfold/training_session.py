"""A mechanism at work in a script of one's own: this rank's part of it."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.create import create_collective
from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK, ScheduledCollective
from hostlib.collectives.vendor import LibraryCollective, require_library
from hostlib.errors import RunError, UnknownNameError
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.mechanisms.mechanism import DEFAULT_MECHANISM, find, find_fallback
from hostlib.pytorch.ddp_hook import HookState, average_hook
from hostlib.pytorch.reduction import Reduction, require_summable
from hostlib.pytorch.step_times import NS_PER_MS, Span, StepTimes, summary
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport_registry import DEFAULT_TRANSPORT, find_transport

OPERATIONS = ("sum", "avg")
KEPT = 1000  # the latest steps, and sums: a long run's memory stays what it is
Hook = Callable[[HookState, dist.GradBucket], Future[Tensor]]

_numbers = itertools.count(1)  # of this process's sessions


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """One of DDP's buckets, over the steps that are remembered.

    Attributes:
        bucket: its number; 0 is the first that the backward pass has ready.
        size_bytes: of its gradients.
        ms_median: milliseconds from the moment its gradients were there until their average was.
    """

    bucket: int
    size_bytes: int
    ms_median: float


@dataclass(frozen=True, slots=True)
class SessionReport:
    """What a session did on this rank. Times are of the latest 1,000 steps, or sums, at most, and in milliseconds.

    Attributes:
        mechanism: its name, options included.
        rank, world_size: this process's number, from 0, and how many ranks there are.
        steps: DDP's steps whose gradients went by the hook.
        buckets: each of DDP's buckets.
        communication_ms_median: of a step, how long at least one bucket was under way; None without steps.
        exposed_ms_median: of a step, from the end of the backward pass until the last bucket was there: what the
            optimiser waits for; None without steps.
        overlap: median share of the communication that the backward pass hid, 0 to 1; None without steps.
        sums: `all_reduce` calls.
        sum_ms_median: from the call of `all_reduce` until the sum was there; None without such calls.
        fabric_failures: what is known of each time that the switch failed and hosts went on; docs/failures.md.
        engine: the packet engine's counters by name; None where none is at work.
    """

    mechanism: str
    rank: int
    world_size: int
    steps: int
    buckets: tuple[BucketTimes, ...]
    communication_ms_median: float | None
    exposed_ms_median: float | None
    overlap: float | None
    sums: int
    sum_ms_median: float | None
    fabric_failures: list[dict[str, Any]]
    engine: dict[str, int] | None


@dataclass(slots=True)
class _Remembered:
    """What was measured: how much of it there was, and the latest."""

    steps: int = 0
    sums: int = 0
    of_steps: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=KEPT))
    of_sums: deque[Span] = field(default_factory=lambda: deque(maxlen=KEPT))


class Session:
    """This rank's part of a mechanism's work; `netfold.session` makes one. All ranks ask for the same, in the same order.

    Attributes:
        mechanism: its name, options included.
        rank: this process's number, from 0.
        world_size: how many ranks there are.
    """

    def __init__(
        self, mechanism: str, context: RankContext, collective: ScheduledCollective | LibraryCollective
    ) -> None:
        self.mechanism, self.rank, self.world_size = mechanism, context.rank, context.world_size
        self._collective = collective
        self._state = HookState(collective)
        self._remembered = _Remembered()
        self._at_end: tuple[list[dict[str, Any]], dict[str, int] | None] | None = None

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "avg"] = "sum") -> Reduction:
        """Begin to sum or average a tensor over all ranks, in place.

        Args:
            tensor: of any shape, the same on every rank; dense; float32, float16, bfloat16, or int32, which is summed
                alone; on the CPU or a CUDA device. It must be left alone until the sum is there.

        Returns:
            What `.wait()` returns from when the tensor holds the sum.

        Raises:
            UnknownNameError: there is no such operation.
            HostlibError: such tensors are not summed. What else goes wrong, `.wait()` raises: of the dtype, a missing
                rank, a fabric that does not answer.

        Source: docs/protocol.md: how a switch sums floats; docs/torch.md: dtypes.
        """
        if op not in OPERATIONS:
            raise UnknownNameError("operation", op, OPERATIONS)
        require_summable("all-reduce", tensor)
        span = Span(self._remembered.sums, tensor.nbytes, time.perf_counter_ns())
        self._remembered.sums += 1
        self._remembered.of_sums.append(span)
        future = self._collective.allreduce(tensor, op == "avg")
        future.add_done_callback(lambda _: setattr(span, "done_ns", time.perf_counter_ns()))
        return Reduction([future], lambda: [tensor])

    def ddp_hook(self) -> tuple[HookState, Hook]:
        """What DistributedDataParallel takes, so that each bucket of gradients is averaged while the backward pass goes on:

            ddp = DistributedDataParallel(model)
            ddp.register_comm_hook(*session.ddp_hook())

        Returns:
            The hook's state, one for all hooks of a session, and the hook.

        Source: torch.distributed.algorithms.ddp_comm_hooks; Li et al. 2020, "PyTorch Distributed", section 3.2.
        """
        remembered = self._remembered

        @wraps(average_hook)  # with its annotations, which DDP inspects
        def hook(state: HookState, bucket: dist.GradBucket) -> Future[Tensor]:
            average = average_hook(state, bucket)
            if bucket.index() == 0:
                remembered.steps += 1
                remembered.of_steps.append(state.step)
            return average

        return self._state, hook

    def report(self) -> SessionReport:
        """What was done so far; after the session's end, all of it."""
        failures, engine = self._at_end or (self._collective.failures, self._collective.stats())
        steps = [step for step in self._remembered.of_steps if step.spans and all(s.done_ns for s in step.spans)]
        spans: dict[int, list[Span]] = {}
        for span in itertools.chain.from_iterable(step.spans for step in steps):
            spans.setdefault(span.bucket, []).append(span)
        of_steps = summary((step.communication_ns, step.exposed_ns) for step in steps) if steps else {}
        sums = [span for span in self._remembered.of_sums if span.done_ns]
        return SessionReport(
            self.mechanism,
            self.rank,
            self.world_size,
            self._remembered.steps,
            tuple(BucketTimes(number, of[-1].size_bytes, _median_ms(of)) for number, of in sorted(spans.items())),
            of_steps.get("communication_ms_median"),
            of_steps.get("exposed_ms_median"),
            of_steps.get("overlap"),
            self._remembered.sums,
            _median_ms(sums) if sums else None,
            list(failures),
            engine,
        )

    def _end(self, graceful: bool) -> None:
        self._at_end = list(self._collective.failures), self._collective.stats()
        self._collective.close(graceful)


def _median_ms(spans: list[Span]) -> float:
    return round(statistics.median(span.done_ns - span.begin_ns for span in spans) / NS_PER_MS, 3)


@contextmanager
def session(
    mechanism: str = DEFAULT_MECHANISM,
    *,
    controller: str = DEFAULT_CONTROLLER,
    deadline_s: float = 30.0,
    address: str = "127.0.0.1",
    fallback: str = DEFAULT_FALLBACK,
    lanes: int = 1,
    transport: str = DEFAULT_TRANSPORT,
) -> Iterator[Session]:
    """A mechanism at work between the processes that torchrun, or mpirun, started: as long as the `with` block runs.

    Rank, world size and where ranks meet are the environment's (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). torch's
    default process group is used where there is one; else it is Gloo's, as long as the block runs. Sessions may follow
    each other; every rank begins the same ones.

    Args:
        mechanism: as `ring` or `inagg+mcast`, which has options behind colons: see `mechanisms`.
        controller: URL, where ranks join for mechanisms that need the fabric.
        deadline_s: seconds that a rank waits without progress before it says who is missing.
        address: this host's IPv4 address towards the switch.
        fallback: the mechanism that goes on when the switch fails.
        lanes: sockets and threads that share a tensor on its way to the switch.
        transport: what messages between hosts go by: `gloo` under torchrun, `mpi` under mpirun.

    Yields:
        What sums.

    Raises:
        RunError: nobody said which rank this is, a rank did not start, or something that cannot be; also for torch's
            errors in the block, which become netfold's that say what they are about.
        UnknownNameError: no such mechanism, fallback or transport.
        ScheduleError: the mechanism can only be simulated.
        JoinError: the controller is not there, or refuses.
        MissingRankError: ranks died or stalled.
        FabricError: the switch does not answer, and neither do all hosts.

    Source: docs/torch.md.
    """
    for what, value in (("deadline_s", deadline_s), ("lanes", lanes)):
        if not value > 0:
            raise RunError(f"{what} must be above 0, not {value}")
    chosen = find(mechanism)
    chosen.require_hosts()
    require_library(chosen, transport)
    find_fallback(fallback)
    with (
        find_transport(transport).environment() as here,
        _default_group_as_before(),
        join_group(here, "session", deadline_s, number=next(_numbers)) as (context, job),
    ):
        collective = create_collective(chosen, context, controller, job, address, fallback=fallback, lanes=lanes)
        made = Session(chosen.name, context, collective)
        finished = False
        try:
            yield made
            finished = True
        finally:
            made._end(finished)


@contextmanager
def _default_group_as_before() -> Iterator[None]:
    """Torch's: one that was made meanwhile is ended."""
    before = dist.is_initialized()
    try:
        yield
    finally:
        if not before and dist.is_initialized():
            dist.destroy_process_group()
