"""A mechanism at work on this rank's tensors: what the torch backend and the DDP hook call."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib._engine import Cancelled
from hostlib.errors import HostlibError, RunError, UnknownNameError
from hostlib.fabric import SwitchFabric
from hostlib.group import Group
from hostlib.registry import Mechanism, find, require_fallback
from hostlib.runtime import Runtime, Started

DEFAULT_FALLBACK = "ring"
TEND_S = 0.1  # how often an idle rank looks whether another has found the fabric dead
CLOSE_S = 2.0

# What is summed, and the dtype it travels in.
DTYPES = {
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int32: torch.int32,
}


class Collective(Protocol):
    """Sums tensors over the ranks. Every rank must ask for the same ones in the same order."""

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        """Sum or average a tensor in place; the future holds it, or a HostlibError."""
        ...

    def stats(self) -> dict[str, int] | None:
        """The packet engine's counters, when there is one."""
        ...

    def close(self, graceful: bool = True) -> None: ...


def gloo_reason(wrong: Exception) -> str:
    """What Gloo says went wrong, without the place in its sources."""
    lines = str(wrong).splitlines() or [repr(wrong)]
    return re.sub(r"^\[[^\]]*\] *", "", lines[0])


def chunks(elements: int, elements_per_packet: int) -> int:
    """Slots that the switch completes for one all-reduce: the prologue and the packets (docs/protocol.md)."""
    return 0 if elements == 0 else 1 + -(-elements // elements_per_packet)


@dataclass(slots=True)
class Reduction:
    """One all-reduce that was asked for.

    Attributes:
        work: what travels; `tensor` itself where it can.
    """

    tensor: Tensor
    work: Tensor
    started: Started
    future: torch.futures.Future[Tensor]
    since: float


class ScheduledCollective:
    """A mechanism of ours: its schedule, begun by the caller and finished by one thread, in issue order.

    Args:
        fallback: the mechanism that sums what the switch does not, after it failed.
        lanes: see hostlib.fabric.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        group: Group,
        controller: str,
        job: str,
        address: str,
        fallback: str = DEFAULT_FALLBACK,
        lanes: int = 1,
    ) -> None:
        self._group = group
        self._fabric: SwitchFabric | None = None
        if mechanism.needs_fabric:
            by_hosts = Runtime(_fallback(fallback), group.world_size, group.rank, group.peers)
            self._fabric = SwitchFabric(
                group, controller, job, address, lambda values: by_hosts.allreduce(values, False), lanes
            )
        self._runtime = Runtime(mechanism, group.world_size, group.rank, group.peers, self._fabric)
        # What goes through the switch alone needs no detour over float32.
        self._native = self._fabric is not None and self._runtime.only_fabric
        self._asked: queue.SimpleQueue[Reduction | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="collective", daemon=True)
        self._thread.start()

    @property
    def elements_per_packet(self) -> int:
        return self._fabric.session.place.elements if self._fabric is not None else 0

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            travelling = _travelling(tensor, average)
            if self._native:
                travelling = tensor.dtype
            with torch.no_grad():
                work = tensor.detach().to(travelling, memory_format=torch.contiguous_format).contiguous()
            # In the order of the switch's stream, which is that of this lock.
            with self._lock:
                if self._closing:
                    raise RunError("this collective is closed")
                started = self._runtime.begin(work, average)
                self._asked.put(Reduction(tensor, work, started, future, time.monotonic()))
        except HostlibError as wrong:
            future.set_exception(wrong)
        return future

    def _run(self) -> None:
        while True:
            try:
                asked = self._asked.get(timeout=TEND_S)
            except queue.Empty:
                self._guarded(time.monotonic(), self._tend)
                continue
            if asked is None:
                return
            self._reduce(asked)

    def _tend(self) -> None:
        if self._fabric is not None and self._broken is None:
            self._fabric.tend()

    def _reduce(self, asked: Reduction) -> None:
        wrong = self._broken or self._guarded(asked.since, lambda: self._runtime.finish(asked.started))
        if wrong is not None:
            asked.future.set_exception(wrong)
            return
        if asked.work.data_ptr() != asked.tensor.data_ptr():
            with torch.no_grad():
                asked.tensor.copy_(asked.work)
        asked.future.set_result(asked.tensor)

    def _guarded(self, since: float, do: Callable[[], None]) -> Exception | None:
        """What went wrong. All but a refused sum breaks the stream: the ranks are no longer where the others are."""
        try:
            do()
        except OverflowError as refused:
            return refused
        except (HostlibError, Cancelled) as wrong:
            self._broken = wrong
        except Exception as wrong:
            self._broken = _explained(self._group, since, wrong)
        return self._broken

    def stats(self) -> dict[str, int] | None:
        return self._fabric.stats() if self._fabric is not None else None

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What is known of each failure of the fabric; see SwitchFabric."""
        return self._fabric.failures if self._fabric is not None else []

    def close(self, graceful: bool = True) -> None:
        """End. `graceful`: stay until the other ranks have what they asked for, too."""
        with self._lock:
            self._closing = True
        if self._fabric is not None and not graceful:
            self._fabric.engine.cancel()
        self._asked.put(None)
        self._thread.join(timeout=self._group.deadline_s if graceful else CLOSE_S)
        settled = graceful and self._broken is None and not self._thread.is_alive()
        if settled:
            self._guarded(time.monotonic(), self._runtime.close)
        if self._fabric is None:
            return
        if settled:
            self._guarded(time.monotonic(), self._fabric.settle)
        self._fabric.close()


def _fallback(name: str) -> Mechanism:
    """A mechanism of the ranks' alone.

    Raises:
        UnknownNameError: there is no such mechanism, or it needs the switch itself, or servers.
    """
    require_fallback(name)
    return find(name)


class LibraryCollective:
    """The library's own all-reduce, as it is."""

    elements_per_packet = 0

    def __init__(self, group: Group) -> None:
        self._group = group
        self.failures: list[dict[str, Any]] = []

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
                raise _explained(self._group, started, wrong) from wrong
            return tensor.div_(self._group.world_size) if average else tensor

        return work.get_future().then(finish)  # type: ignore[no-any-return]

    def stats(self) -> dict[str, int] | None:
        return None

    def close(self, graceful: bool = True) -> None:
        return


def _explained(group: Group, since: float, wrong: Exception) -> HostlibError:
    """Gloo says only that a connection broke; who is missing, the signs of life tell."""
    reason = gloo_reason(wrong)
    return group.liveness.explain(
        time.monotonic() - since, lambda: RunError(f"a message between ranks failed: {reason}")
    )


def _travelling(tensor: Tensor, average: bool) -> torch.dtype:
    if tensor.dtype not in DTYPES:
        raise UnknownNameError("dtype", str(tensor.dtype), map(str, DTYPES))
    if average and not tensor.is_floating_point():
        raise HostlibError(f"{tensor.dtype} tensors can be summed, not averaged")
    return DTYPES[tensor.dtype]


def create_collective(
    mechanism: Mechanism,
    group: Group,
    controller: str,
    job: str,
    address: str = "127.0.0.1",
    fallback: str = DEFAULT_FALLBACK,
    lanes: int = 1,
) -> ScheduledCollective | LibraryCollective:
    """A mechanism for a group of ranks; joins the controller's job when it needs the switch.

    Raises:
        JoinError: see hostlib.join.
        UnknownNameError: no such fallback.
    """
    if mechanism.build is None:
        return LibraryCollective(group)
    return ScheduledCollective(mechanism, group, controller, job, address, fallback, lanes)
