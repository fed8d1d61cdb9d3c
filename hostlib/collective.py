"""A mechanism at work on this rank's tensors: what the torch backend and the DDP hook call."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib._engine import Cancelled, Engine, Stalled
from hostlib.checker import check
from hostlib.errors import FabricError, HostlibError, RunError, UnknownNameError
from hostlib.join import FabricSession, join
from hostlib.liveness import Liveness
from hostlib.registry import Mechanism
from hostlib.runtime import Runtime

# What is summed, and the dtype it travels in.
DTYPES = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
}


@dataclass(frozen=True, slots=True)
class Group:
    """This rank among the others.

    Attributes:
        gloo: torch.distributed.ProcessGroupGloo over the same ranks.
        deadline_s: how long an operation may make no progress.
    """

    rank: int
    world_size: int
    gloo: Any
    liveness: Liveness
    deadline_s: float


class Collective(Protocol):
    """Sums tensors over the ranks. Every rank must ask for the same ones in the same order."""

    reduced: list[int]  # elements of every all-reduce that went through the switch, in order

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        """Sum or average a tensor in place; the future holds it, or a HostlibError."""
        ...

    def stats(self) -> dict[str, int] | None:
        """The packet engine's counters, when there is one."""
        ...

    def close(self) -> None: ...


def gloo_reason(wrong: Exception) -> str:
    """What Gloo says went wrong, without the place in its sources."""
    lines = str(wrong).splitlines() or [repr(wrong)]
    return re.sub(r"^\[[^\]]*\] *", "", lines[0])


def chunks(elements: int, elements_per_packet: int) -> int:
    """Slots that the switch completes for one all-reduce: the prologue and the packets (docs/protocol.md)."""
    return 0 if elements == 0 else 1 + -(-elements // elements_per_packet)


class SwitchFabric:
    """The switch's part of a schedule: the packet engine, in a job of the controller."""

    def __init__(self, group: Group, controller: str, job: str, address: str) -> None:
        self._group = group
        self.reduced: list[int] = []
        self.engine = Engine(address)
        self.session: FabricSession = join(
            controller,
            job,
            group.rank,
            group.world_size,
            self.engine.address,
            self.engine.port,
            group.deadline_s,
            lambda: self.engine.position,
        )
        place = self.session.place
        self.engine.configure(
            place.fabric_address,
            place.fabric_port,
            place.job_id,
            place.epoch,
            place.rank,
            place.world_size,
            place.first_slot,
            place.slots,
            place.elements,
        )

    def allreduce(self, piece: Tensor, average: bool) -> None:
        """Raises MissingRankError or FabricError when no result comes, OverflowError for int32 sums that do not fit."""
        try:
            self.engine.allreduce(piece.numpy(), average, self._group.deadline_s)
        except Stalled as stalled:
            where = f"{self.session.place.fabric_address}:{self.session.place.fabric_port}"
            raise self._group.liveness.explain(
                self._group.deadline_s,
                lambda: FabricError(
                    f"no answer from the switch at {where} for {self._group.deadline_s:.0f} s; all ranks are alive"
                ),
            ) from stalled
        self.reduced.append(piece.numel())

    def close(self) -> None:
        self.session.leave()


class ScheduledCollective:
    """A mechanism of ours: its schedule, executed by one thread in issue order."""

    def __init__(self, mechanism: Mechanism, group: Group, controller: str, job: str, address: str) -> None:
        schedule = mechanism.schedule(group.world_size)
        check(schedule)
        self._group = group
        self._fabric = SwitchFabric(group, controller, job, address) if mechanism.needs_fabric else None
        self._runtime = Runtime(schedule, group.rank, group.gloo, self._fabric)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="collective")
        self.reduced: list[int] = self._fabric.reduced if self._fabric is not None else []

    @property
    def elements_per_packet(self) -> int:
        return self._fabric.session.place.elements if self._fabric is not None else 0

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            travelling = _travelling(tensor, average)
        except HostlibError as wrong:
            future.set_exception(wrong)
            return future
        self._thread.submit(self._reduce, tensor, travelling, average, future)
        return future

    def _reduce(
        self, tensor: Tensor, travelling: torch.dtype, average: bool, future: torch.futures.Future[Tensor]
    ) -> None:
        started = time.monotonic()
        try:
            work = (
                tensor
                if tensor.dtype == travelling and tensor.is_contiguous()
                else (tensor.to(travelling, memory_format=torch.contiguous_format).contiguous())
            )
            with torch.no_grad():
                self._runtime.allreduce(work, average)
                if work is not tensor:
                    tensor.copy_(work)
        except (HostlibError, OverflowError, Cancelled) as wrong:
            future.set_exception(wrong)
        except Exception as wrong:
            # Gloo says only that a connection broke; who is missing, the counters tell.
            reason = gloo_reason(wrong)
            future.set_exception(
                self._group.liveness.explain(
                    time.monotonic() - started, lambda: RunError(f"a message between ranks failed: {reason}")
                )
            )
        else:
            future.set_result(tensor)

    def stats(self) -> dict[str, int] | None:
        return dict(self._fabric.engine.stats()) if self._fabric is not None else None

    def close(self) -> None:
        if self._fabric is not None:
            self._fabric.engine.cancel()
        self._thread.shutdown(wait=True)
        if self._fabric is not None:
            self._fabric.close()


class LibraryCollective:
    """The library's own all-reduce, as it is."""

    elements_per_packet = 0

    def __init__(self, group: Group) -> None:
        self._group = group
        self.reduced: list[int] = []

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        try:
            _travelling(tensor, average)
        except HostlibError as wrong:
            refused: torch.futures.Future[Tensor] = torch.futures.Future()
            refused.set_exception(wrong)
            return refused
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        started = time.monotonic()
        work = self._group.gloo.allreduce([tensor], options)

        def finish(done: torch.futures.Future[Any]) -> Tensor:
            try:
                done.value()
            except Exception as wrong:
                reason = gloo_reason(wrong)
                raise self._group.liveness.explain(
                    time.monotonic() - started, lambda: RunError(f"a message between ranks failed: {reason}")
                ) from wrong
            return tensor.div_(self._group.world_size) if average else tensor

        return work.get_future().then(finish)  # type: ignore[no-any-return]

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self) -> None:
        return


def _travelling(tensor: Tensor, average: bool) -> torch.dtype:
    if tensor.dtype not in DTYPES:
        raise UnknownNameError("dtype", str(tensor.dtype), map(str, DTYPES))
    if average and not tensor.is_floating_point():
        raise HostlibError(f"{tensor.dtype} tensors can be summed, not averaged")
    return DTYPES[tensor.dtype]


def create_collective(
    mechanism: Mechanism, group: Group, controller: str, job: str, address: str = "127.0.0.1"
) -> ScheduledCollective | LibraryCollective:
    """A mechanism for a group of ranks; joins the controller's job when it needs the switch.

    Raises:
        JoinError: see hostlib.join.
    """
    if mechanism.build is None:
        return LibraryCollective(group)
    return ScheduledCollective(mechanism, group, controller, job, address)
