"""Sessions: one rank's use of a mechanism in a training script of your own."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from hostlib.collectives.arguments import (
    require_deadline,
    require_lanes,
    require_own_address,
    require_silence,
    require_slots,
    require_text,
)
from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.create import MechanismCollective, create_collective
from hostlib.collectives.rank_collectives import RankCollectives
from hostlib.collectives.scheduled_collective import DEFAULT_FALLBACK
from hostlib.collectives.vendor import require_library
from hostlib.errors import UnknownNameError
from hostlib.fabric.admission import admitted_alike
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism, find, find_fallback
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.pytorch.ddp_hook import HookState, average_hook
from hostlib.pytorch.group_traffic import GroupTraffic
from hostlib.pytorch.reduction import Reduction, require_summable
from hostlib.pytorch.step_times import NS_PER_MS, Span, StepTimes, summary
from hostlib.schedules.contract import Collective
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport_registry import DEFAULT_TRANSPORT, find_transport
from hostlib.transport.waits import PATIENCE_S, SILENCE_S

OPERATIONS = ("sum", "avg")
KEPT = 1000  # the latest steps, and sums, that are kept: memory stays bounded in long runs
Hook = Callable[[HookState, dist.GradBucket], Future[Tensor]]

_numbers = itertools.count(1)  # counts the sessions of this process


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """Timing of one of DDP's buckets over the remembered steps.

    Attributes:
        bucket: its index; 0 is the first bucket that the backward pass completes.
        size_bytes: size of its gradients.
        ms_median: milliseconds from when its gradients were ready until their average was available.
    """

    bucket: int
    size_bytes: int
    ms_median: float


@dataclass(frozen=True, slots=True)
class SessionReport:
    """What a session did on this rank. Times are in milliseconds, over at most the latest 1,000 steps or sums.

    Attributes:
        mechanism: its name, with options.
        rank, world_size: this process's rank, from 0, and the number of ranks.
        steps: DDP steps whose gradients went through the hook.
        buckets: one entry for each of DDP's buckets.
        communication_ms_median: time per step during which at least one bucket was in flight; None without steps.
        exposed_ms_median: time per step from the end of the backward pass until the last bucket was available, which
            the optimiser waits for; None without steps.
        overlap: median share of the communication hidden by the backward pass, 0 to 1; None without steps.
        sums: number of `all_reduce` calls.
        sum_ms_median: from the call of `all_reduce` until the sum was available; None without such calls.
        fabric_failures: one record for each time that the switch failed and the hosts went on without it; see
            docs/failures.md.
        engine: the packet engine's counters by name; None if no packet engine is used.
        traffic: calls, and bytes of this rank's tensors, by operation, then by what carried them: "fabric", or "hosts"
            for what the mechanism sends past the fabric. As `traffic["all_reduce"]["fabric"]["bytes"]`. What hosts
            carried for a fabric that had failed is in `fabric_failures`.
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
    traffic: dict[str, dict[str, dict[str, int]]]


@dataclass(slots=True)
class _Remembered:
    """Measurements: how many there were, and the latest ones."""

    steps: int = 0
    sums: int = 0
    of_steps: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=KEPT))
    of_sums: deque[Span] = field(default_factory=lambda: deque(maxlen=KEPT))


class Session:
    """One rank's handle to a running mechanism; created by `netfold.session`. All ranks must make the same calls in the
    same order.

    Attributes:
        mechanism: its name, with options.
        rank: this process's rank, from 0.
        world_size: number of ranks.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        context: RankContext,
        collective: MechanismCollective,
        others: RankCollectives,
        number: int,
    ) -> None:
        self.mechanism, self.rank, self.world_size = mechanism.name, context.rank, context.world_size
        self._traffic = GroupTraffic(self, f"session-{number}")
        self._count = partial(self._traffic.count, mechanism)
        self._collective, self._others = collective, others
        self._state = HookState(collective)
        self._remembered = _Remembered()
        self._at_end: tuple[list[dict[str, Any]], dict[str, int] | None] | None = None

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "avg"] = "sum") -> Reduction:
        """Start to sum or average a tensor over all ranks, in place.

        Args:
            tensor: of any shape, the same on every rank; dense; float32, float16, bfloat16, or int32 (`op="sum"` only);
                on the CPU or a CUDA device; without elements that share memory. Neither read nor write it until `.wait()` has returned.
            op: "sum" or "avg".

        Returns:
            A handle whose `.wait()` returns when the tensor holds the result.

        Raises:
            UnknownNameError: there is no such operation.
            HostlibError: tensors of this kind are not summed. Other errors are raised by `.wait()`: an unsupported
                dtype, a missing rank, a fabric that does not answer.

        Source: docs/protocol.md: how a switch sums floats; docs/torch.md: dtypes.
        """
        if op not in OPERATIONS:
            raise UnknownNameError("operation", op, OPERATIONS)
        require_summable("all-reduce", tensor)
        span = Span(self._remembered.sums, tensor.nbytes, time.perf_counter_ns())
        self._remembered.sums += 1
        self._remembered.of_sums.append(span)
        future = self._collective.allreduce(tensor, op == "avg")
        self._count(Collective.ALL_REDUCE, tensor)
        future.add_done_callback(lambda _: setattr(span, "done_ns", time.perf_counter_ns()))
        return Reduction([future], lambda: [tensor])

    def reduce_scatter(self, output: Tensor, tensor: Tensor, op: Literal["sum", "avg"] = "sum") -> Reduction:
        """Start to sum or average a tensor over all ranks, of which each rank gets its shard.

        Args:
            output: gets shard r of the result on rank r; as many elements as `tensor` has, over the number of ranks.
            tensor: shards of equal size, in the order of ranks; float32, float16, bfloat16, or int32 (`op="sum"` only);
                on the CPU. It keeps its values; do not change them before `.wait()` returns.
            op: "sum" or "avg".

        Returns:
            A handle whose `.wait()` returns when `output` holds the result.

        Raises:
            UnknownNameError: there is no such operation, or the dtype is not summed.
            ScheduleError: the mechanism does no reduce-scatter on hosts.
            HostlibError: the tensors do not fit each other. A missing rank is raised by `.wait()`.

        Source: docs/mechanisms.md: which mechanism does which collective.
        """
        if op not in OPERATIONS:
            raise UnknownNameError("operation", op, OPERATIONS)
        future = self._others.reduce_scatter(output, tensor, op == "avg")
        self._count(Collective.REDUCE_SCATTER, tensor)
        return Reduction([future], lambda: [output])

    def all_gather(self, output: Tensor, tensor: Tensor) -> Reduction:
        """Start to gather all ranks' tensors on every rank, bit for bit.

        Args:
            output: gets the tensors one after the other, in the order of ranks.
            tensor: of any dtype, the same size on every rank; on the CPU. Do not change it before `.wait()` returns.

        Returns:
            A handle whose `.wait()` returns when `output` holds the result.

        Raises:
            ScheduleError: the mechanism does no all-gather on hosts.
            JoinError: the mechanism needs the fabric, and the controller does not answer, or refuses.
            HostlibError: the tensors do not fit each other. A missing rank is raised by `.wait()`.

        Source: docs/mechanisms.md: which mechanism does which collective.
        """
        future = self._others.all_gather(output, tensor)
        self._count(Collective.ALL_GATHER, output)
        return Reduction([future], lambda: [output])

    def broadcast(self, tensor: Tensor, root: int = 0) -> Reduction:
        """Start to give all ranks the tensor of one of them, in place and bit for bit.

        Args:
            tensor: of any dtype, the same size on every rank; on the CPU. Neither read nor write it until `.wait()` has
                returned.
            root: the rank whose values all get.

        Returns:
            A handle whose `.wait()` returns when the tensor holds the result.

        Raises:
            ScheduleError: the mechanism does no broadcast on hosts.
            JoinError: the mechanism needs the fabric, and the controller does not answer, or refuses.
            HostlibError: the tensor is not dense, or there is no such rank. A missing rank is raised by `.wait()`.

        Source: docs/mechanisms.md: which mechanism does which collective.
        """
        future = self._others.broadcast(tensor, root)
        self._count(Collective.BROADCAST, tensor)
        return Reduction([future], lambda: [tensor])

    def reduce(self, tensor: Tensor, root: int = 0, op: Literal["sum", "avg"] = "sum") -> Reduction:
        """Start to sum or average a tensor over all ranks, for one of them.

        Args:
            tensor: of any shape, the same on every rank; dense; float32, float16, bfloat16, or int32 (`op="sum"` only);
                on the CPU. The root's gets the result, in place; the others' keep their values. Neither read nor write
                it until `.wait()` has returned.
            root: the rank that gets the result.
            op: "sum" or "avg".

        Returns:
            A handle whose `.wait()` returns when the root's tensor holds the result, or this rank has done its part.

        Raises:
            UnknownNameError: there is no such operation, or the dtype is not summed.
            ScheduleError: the mechanism does no reduce on hosts.
            HostlibError: the tensor is not dense, or there is no such rank. A missing rank is raised by `.wait()`.

        Source: docs/mechanisms.md: which mechanism does which collective.
        """
        if op not in OPERATIONS:
            raise UnknownNameError("operation", op, OPERATIONS)
        future = self._others.reduce(tensor, root, op == "avg")
        self._count(Collective.REDUCE, tensor)
        return Reduction([future], lambda: [tensor])

    def all_to_all(self, tensor: Tensor) -> Reduction:
        """Start to exchange shards between all ranks, in place and bit for bit: shard r goes to rank r, and rank r's
        shard for this rank takes its place.

        Args:
            tensor: shards of equal size, in the order of ranks; of any dtype, the same size on every rank; on the CPU.
                Neither read nor write it until `.wait()` has returned.

        Returns:
            A handle whose `.wait()` returns when the tensor holds the result.

        Raises:
            ScheduleError: the mechanism does no all-to-all on hosts.
            HostlibError: the tensor is not dense, or not of whole shards. A missing rank is raised by `.wait()`.

        Source: docs/mechanisms.md: which mechanism does which collective.
        """
        future = self._others.all_to_all(tensor)
        self._count(Collective.ALL_TO_ALL, tensor)
        return Reduction([future], lambda: [tensor])

    def ddp_hook(self) -> tuple[HookState, Hook]:
        """Return the state and hook that average DDP's gradient buckets while the backward pass goes on.

            ddp = DistributedDataParallel(model)
            ddp.register_comm_hook(*session.ddp_hook())

        Returns:
            The hook's state, shared by all hooks of a session, and the hook.

        Source: torch.distributed.algorithms.ddp_comm_hooks; Li et al. 2020, "PyTorch Distributed", section 3.2.
        """
        remembered, count = self._remembered, self._count

        @wraps(average_hook)  # defined here with its annotations, because DDP inspects them
        def hook(state: HookState, bucket: dist.GradBucket) -> Future[Tensor]:
            average = average_hook(state, bucket)
            count(Collective.ALL_REDUCE, bucket.buffer())
            if bucket.index() == 0:
                remembered.steps += 1
                remembered.of_steps.append(state.step)
            return average

        return self._state, hook

    def report(self) -> SessionReport:
        """Report what the session has done so far; after the session's end, all of it."""
        failures, engine = self._at_end or self._so_far()
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
            self._traffic.as_json(),
        )

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each time that the switch failed; see docs/failures.md."""
        failures, _ = self._at_end or self._so_far()
        return list(failures)

    def _so_far(self) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
        return [*self._collective.failures, *self._others.failures], self._collective.stats()

    def _end(self, graceful: bool) -> None:
        self._at_end = self._so_far()
        self._traffic.end(self.failures)
        self._others.close(graceful)
        self._collective.close(graceful)


def _median_ms(spans: list[Span]) -> float:
    return round(statistics.median(span.done_ns - span.begin_ns for span in spans) / NS_PER_MS, 3)


@contextmanager
def session(
    mechanism: str = DEFAULT_MECHANISM,
    *,
    controller: str = DEFAULT_CONTROLLER,
    deadline_s: float = 30.0,
    patience_s: float = PATIENCE_S,
    silence_s: float = SILENCE_S,
    address: str = "127.0.0.1",
    fallback: str = DEFAULT_FALLBACK,
    lanes: int = 1,
    slots: int | None = None,
    transport: str = DEFAULT_TRANSPORT,
) -> Iterator[Session]:
    """Run a mechanism between the processes that torchrun or mpirun started, for the duration of the `with` block.

    Rank, world size and rendezvous address come from the environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
    torch's default process group is used if it exists; otherwise a Gloo group is made for the block. Sessions may
    follow each other; every rank must start the same ones.

    Args:
        mechanism: as `ring` or `inagg+mcast`, with options after colons: see `mechanisms`.
        controller: URL of the controller, for mechanisms that need the fabric; or, separated by commas, those of a
            primary and its standbys.
        deadline_s: seconds without progress after which a rank reports which ranks are missing.
        patience_s: seconds without a result after which the switch counts as dead, while all ranks wait for it.
        silence_s: seconds without a sign of life after which a rank counts as missing.
        address: this host's IPv4 address towards the switch.
        fallback: the mechanism that takes over when the switch fails.
        lanes: sockets and threads that share a tensor on its way to the switch; 1 to 4.
        slots: of the switch, for each lane: a power of two; None for 128. Fewer leave room for other jobs, and large
            tensors are slower.
        transport: carries messages between hosts: `gloo` under torchrun, `mpi` under mpirun.

    Yields:
        This rank's session.

    Raises:
        RunError: the environment does not name the rank, a rank did not start, or an argument is impossible; also
            errors of torch within the block, restated with their cause.
        UnknownNameError: there is no such mechanism, fallback or transport.
        ScheduleError: the mechanism can only be simulated.
        JoinError: the controller does not answer, or refuses.
        MissingRankError: ranks died or stalled.
        FabricError: neither the switch nor all hosts answer.

    Source: docs/torch.md.
    """
    for what, text in (("mechanism", mechanism), ("controller", controller), ("fallback", fallback)):
        require_text(what, text)
    require_deadline("deadline_s", deadline_s)
    require_deadline("patience_s", patience_s)
    require_silence("silence_s", silence_s)
    require_lanes("lanes", lanes)
    require_own_address("address", address)
    if slots is not None:
        require_slots("slots", slots, lanes)
    chosen = find(mechanism)
    chosen.require_hosts()
    require_library(chosen, transport)
    find_fallback(fallback)
    number = next(_numbers)
    with (
        find_transport(transport).environment() as here,
        _default_group_as_before(),
        join_group(
            here,
            "session",
            deadline_s,
            number=number,
            slots=slots or SLOTS_PER_POOL,
            patience_s=patience_s,
            silence_s=silence_s,
        ) as (context, job),
    ):
        context = replace(
            context, admitted=admitted_alike(context.gloo, context.world_size), in_script=transport == DEFAULT_TRANSPORT
        )
        collective = create_collective(chosen, context, controller, job, address, fallback=fallback, lanes=lanes)
        others = RankCollectives(chosen, context, controller, address)
        made = Session(chosen, context, collective, others, number)
        finished = False
        try:
            yield made
            finished = True
        finally:
            made._end(finished)


@contextmanager
def _default_group_as_before() -> Iterator[None]:
    """End torch's default process group on exit if it was made within the block."""
    before = dist.is_initialized()
    try:
        yield
    finally:
        if not before and dist.is_initialized():
            dist.destroy_process_group()
