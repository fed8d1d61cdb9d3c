"""A mechanism's collectives on this rank, but for the all-reduce."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hostlib.collectives.gloo_executor import GlooExecutor
from hostlib.collectives.mechanism_executor import MechanismExecutor
from hostlib.collectives.vendor import CLOSE_S
from hostlib.errors import HostlibError, RunError
from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.request import wire_dtype
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.agreement import Agreement
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse
from hostlib.transport.transport import FabricEnd, MulticastTransport
from hostlib.transport.workspace import Workspace

Future = torch.futures.Future[Tensor]


class TensorExecutor(Protocol):
    """Does one collective with a flat contiguous tensor in place; see MechanismExecutor.execute."""

    def execute(self, tensor: Tensor, average: bool = False, root: int = 0) -> None: ...


@dataclass(slots=True)
class Lane:
    """The thread of one collective, or of all that the switch multicasts.

    Attributes:
        messengers: executors whose messages between hosts have a queue, with a thread, of their own.
    """

    thread: SerialExecutor
    end: FabricEnd | None = None
    broken: Exception | None = None
    messengers: list[MechanismExecutor] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Executing:
    """A collective's executor, and the lane in which it runs.

    Attributes:
        confirm: confirms that all ranks' tensors are alike, where nothing else does.
        workspace: of the lane's thread, for this collective.
    """

    executor: TensorExecutor
    lane: Lane
    confirm: Agreement | None = None
    workspace: Workspace = field(default_factory=Workspace)


class RankCollectives:
    """Collectives of tensors in the host's memory, begun by the caller and done by threads, each kind in issue order.

    Each kind of collective gets a thread, connections and, on the fabric, a job of its own when it is first used, so
    different kinds run at the same time. What the switch multicasts is one kind, in one job. All ranks must make the same
    calls in the same order, and leave tensors as they are until their collective is done.

    Args:
        controller, address: for mechanisms whose words the switch multicasts; see hostlib.fabric.multicast.
        completing: gives the threads that complete a collective's futures, and so run callbacks, which may begin
            others; None to complete them in the thread that does the collective.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        context: RankContext,
        controller: str,
        address: str,
        completing: Callable[[Collective], CompletionThreads] | None = None,
    ) -> None:
        self._mechanism, self._context = mechanism, context
        self._controller, self._address = controller, address
        self._completing = completing
        self._executing: dict[Collective, Executing] = {}
        self._lanes: list[Lane] = []
        self._multicast: tuple[MulticastTransport, Lane] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def reduce_scatter(self, output: Tensor, values: Tensor, average: bool, future: Future | None = None) -> Future:
        """Sum or average `values` over the ranks; `output` gets this rank's shard.

        Args:
            future: is completed and returned, if there is one already; so for the others.

        Raises:
            HostlibError: the mechanism cannot do it on hosts, or the tensors do not fit.
        """
        self._require_shards("reduce-scatter", output, values)
        dtype = wire_dtype(values, average)

        def scatter(executor: TensorExecutor) -> None:
            self._confirm(Collective.REDUCE_SCATTER, values, average)
            work = self._summand(Collective.REDUCE_SCATTER, values, dtype)
            executor.execute(work, average)
            mine = work.narrow(0, self._context.rank * output.numel(), output.numel())
            output.detach().copy_(mine.view(output.shape))

        return self._put(Collective.REDUCE_SCATTER, scatter, output, future)

    def all_gather(self, output: Tensor, values: Tensor, future: Future | None = None) -> Future:
        """Gather the ranks' `values` in `output`, in the order of ranks. Any dtype; bit for bit. Raises HostlibError."""
        self._require_shards("all-gather", values, output)

        def gather(executor: TensorExecutor) -> None:
            work, size = _contiguous(output), values.numel()
            work.view(-1).narrow(0, self._context.rank * size, size).copy_(values.detach().reshape(-1))
            executor.execute(_bytes(work))
            _give_back(work, output)

        return self._put(Collective.ALL_GATHER, gather, output, future)

    def broadcast(self, tensor: Tensor, root: int, future: Future | None = None) -> Future:
        """Give all ranks the root's values. Any dtype; bit for bit. Raises HostlibError."""
        self._require_root("broadcast", tensor, root)

        def spread(executor: TensorExecutor) -> None:
            work = _contiguous(tensor)
            executor.execute(_bytes(work), root=root)
            _give_back(work, tensor)

        return self._put(Collective.BROADCAST, spread, tensor, future)

    def reduce(self, tensor: Tensor, root: int, average: bool, future: Future | None = None) -> Future:
        """Sum or average the ranks' tensors on the root, in place; the others' stay. Raises HostlibError."""
        self._require_root("reduce", tensor, root)
        dtype = wire_dtype(tensor, average)

        def collect(executor: TensorExecutor) -> None:
            self._confirm(Collective.REDUCE, tensor, average)
            work = self._summand(Collective.REDUCE, tensor, dtype)
            executor.execute(work, average, root)
            if self._context.rank == root:
                tensor.detach().copy_(work.view(tensor.shape))

        return self._put(Collective.REDUCE, collect, tensor, future)

    def all_to_all(self, tensor: Tensor, future: Future | None = None) -> Future:
        """Send shard r of the tensor to rank r, and get rank r's shard for this rank in its place. Any dtype; bit for
        bit. Raises HostlibError.
        """
        _require_dense("all-to-all", tensor)
        n = self._context.world_size
        if tensor.numel() % n:
            raise HostlibError(
                f"all-to-all: the tensor must have a shard of the same size for each of the {n} ranks, and its "
                f"{tensor.numel()} elements are no multiple of {n}"
            )

        def exchange(executor: TensorExecutor) -> None:
            agreement = self._executing[Collective.ALL_TO_ALL].confirm
            if agreement is not None:
                agreement.confirm_bytes(tensor.nbytes)
            work = _contiguous(tensor)
            executor.execute(_bytes(work))
            _give_back(work, tensor)

        return self._put(Collective.ALL_TO_ALL, exchange, tensor, future)

    def _summand(self, collective: Collective, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """A flat copy: sums are taken in place, and the caller's values stay. Until the next of this collective."""
        copy = self._executing[collective].workspace.take(tensor.numel(), dtype)
        copy.view(tensor.shape).copy_(tensor.detach())
        return copy

    def _confirm(self, collective: Collective, tensor: Tensor, average: bool) -> None:
        """Confirm that all ranks sum alike, where nothing else does. Raises RunError: they do not."""
        agreement = self._executing[collective].confirm
        if agreement is not None:
            agreement.confirm(tensor.numel(), tensor.dtype, average)

    def _require_root(self, what: str, tensor: Tensor, root: int) -> None:
        _require_dense(what, tensor)
        if not isinstance(root, int) or not 0 <= root < self._context.world_size:
            raise RunError(f"{what}: root must be in 0..{self._context.world_size - 1}, a rank, not {root!r}")

    def _require_shards(self, what: str, shard: Tensor, whole: Tensor) -> None:
        for tensor in (shard, whole):
            _require_dense(what, tensor)
        if shard.dtype != whole.dtype:
            raise HostlibError(f"{what}: the tensors' dtypes must be the same, not {shard.dtype} and {whole.dtype}")
        n = self._context.world_size
        if whole.numel() != n * shard.numel():
            raise HostlibError(
                f"{what}: the whole tensor must have {n} times the {shard.numel()} elements of a rank's shard, "
                f"not {whole.numel()}"
            )

    def _put(
        self, collective: Collective, do: Callable[[TensorExecutor], None], result: Tensor, given: Future | None
    ) -> Future:
        future: Future = torch.futures.Future() if given is None else given
        since = time.monotonic()
        with self._lock:
            if self._closed:
                raise RunError("this session is closed")
            if collective not in self._executing:
                self._executing[collective] = self._make(collective)
            executor, lane = self._executing[collective].executor, self._executing[collective].lane
            complete = self._completion(collective)

            def attempt() -> Exception | None:
                if lane.broken is not None:
                    return lane.broken
                try:
                    with torch.no_grad():
                        do(executor)
                    return None
                except OverflowError as refused:  # by all ranks, which go on
                    return refused
                except HostlibError as error:
                    lane.broken = error
                except Exception as error:
                    lane.broken = self._context.explain(since, error)
                return lane.broken

            def job() -> None:
                error = attempt()
                complete(partial(future.set_result, result) if error is None else partial(refuse, future, error))

            lane.thread.put(job)
        return future

    def _completion(self, collective: Collective) -> Callable[[Callable[[], None]], None]:
        """What runs the completion of a collective that begins now."""
        if self._completing is None:
            return lambda job: job()
        threads = self._completing(collective)
        return partial(threads.put, place=threads.reserve())

    def _make(self, collective: Collective) -> Executing:
        mechanism, context = self._mechanism.of(collective), self._context
        if mechanism.build is None:
            return Executing(GlooExecutor(collective, context), self._lane(collective.value))
        mechanism.require_hosts()
        if mechanism.servers > context.servers:
            raise RunError(f"{mechanism.name} needs servers beside the ranks for its {collective.words}")
        if mechanism.fabric_use is FabricUse.TO_OWNERS and context.world_size > 1:
            assert context.another_scatter is not None, "part of every context that join_group yields"
            scatter = context.another_scatter(self._controller, self._address)
            return Executing(scatter, self._lane(collective.value, scatter))
        assert context.another_transport is not None, "part of every context that join_group yields"
        multicast, lane = None, None
        if mechanism.fabric_use is FabricUse.MULTICAST and context.world_size > 1:
            multicast, lane = self._multicasting()
        executor = MechanismExecutor(
            mechanism,
            context.world_size,
            context.rank,
            context.another_transport(),
            multicast=multicast,
            segment_bytes=context.segment_bytes,
        )
        lane = lane or self._lane(collective.value)
        lane.messengers.append(executor)
        return Executing(executor, lane, Agreement(context, context.another_gloo()) if context.in_script else None)

    def _multicasting(self) -> tuple[MulticastTransport, Lane]:
        if self._multicast is None:
            assert self._context.another_multicast is not None, "part of every context that join_group yields"
            multicast = self._context.another_multicast(self._controller, self._address)
            self._multicast = multicast, self._lane("multicast", multicast)
        return self._multicast

    def _lane(self, name: str, end: FabricEnd | None = None) -> Lane:
        self._lanes.append(Lane(SerialExecutor(name), end))
        return self._lanes[-1]

    def stats(self) -> dict[str, int] | None:
        """The counters of all packet engines, added up; None without an engine."""
        return added_up([lane.end.stats() for lane in self._lanes if lane.end is not None])

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric; see hostlib.fabric.failover.Failure."""
        ends = [lane.end for lane in self._lanes if lane.end is not None]
        return [failure for end in ends for failure in end.failures]

    def close(self, graceful: bool = True) -> None:
        """End. `graceful`: wait until the other ranks have the results they asked for."""
        with self._lock:
            self._closed = True
        for lane in self._lanes:
            lane.thread.close(self._context.deadline_s if graceful else CLOSE_S)
            settled = graceful and lane.broken is None and lane.thread.idle
            if settled:
                for messenger in lane.messengers:
                    messenger.close()
            if lane.end is not None:
                if settled:
                    lane.end.settle()
                lane.end.close()


def added_up(engines: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    """Counters of packet engines, added up; None without an engine."""
    total: Counter[str] = Counter()
    for counters in engines:
        total.update(counters or {})  # which keeps those that are 0
    return dict(total) or None


def _require_dense(what: str, tensor: Tensor) -> None:
    """Check a tensor. Raises HostlibError, with `what` as the subject."""
    if not isinstance(tensor, Tensor):
        raise HostlibError(f"{what} takes a torch.Tensor, not a {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise HostlibError(f"{what} takes dense tensors on the CPU, not {tensor.layout} on {tensor.device}")


def _contiguous(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy where its memory is not its values one after the other."""
    plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
    return tensor.detach() if plain else tensor.detach().resolve_conj().resolve_neg().contiguous().clone()


def _bytes(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor; that of an empty one may have strides which cannot be viewed so."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() > 0 else torch.empty(0, dtype=torch.uint8)


def _give_back(work: Tensor, tensor: Tensor) -> None:
    if work.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(work)
