"""A mechanism's collective on this rank, used by the torch backend and the DDP hook."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib._engine import Cancelled
from hostlib.collectives.channels import channels, join_multicast
from hostlib.collectives.mechanism_executor import MechanismExecutor
from hostlib.collectives.schedule_executor import Playing
from hostlib.collectives.vendor import CLOSE_S
from hostlib.errors import HostlibError, RunError
from hostlib.fabric.aggregation import SwitchAggregation
from hostlib.mechanisms.mechanism import Mechanism, find_fallback
from hostlib.protocol.openings import TensorCut
from hostlib.staging.completion_threads import CompletionThreads
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of
from hostlib.staging.request import ReduceRequest, host_request, wire_dtype
from hostlib.system.serial_executor import SerialExecutor
from hostlib.transport.agreement import Agreement
from hostlib.transport.rank_context import RankContext
from hostlib.transport.refusals import refuse

DEFAULT_FALLBACK = "ring"
TEND_S = 0.1  # how often an idle rank checks whether another one has found the fabric dead


@dataclass(slots=True)
class RunningRequest:
    """A request in progress over the ranks; `place` is that of its completion."""

    request: ReduceRequest
    playing: Playing
    since: float
    place: int


class ScheduledCollective:
    """Collective of a mechanism with a schedule: begun by the caller and finished by a thread, in issue order.

    With servers there are several such threads (see `channels`). Requests on a device, and those that follow until they
    have begun, are begun by another thread. Futures are completed by others again, so that a callback may wait for a
    collective that it begins.

    Args:
        fallback: the mechanism that sums when the switch has failed.
        lanes: see hostlib.fabric.aggregation.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        context: RankContext,
        controller: str,
        job: str,
        address: str,
        fallback: str = DEFAULT_FALLBACK,
        lanes: int = 1,
    ) -> None:
        self._context = context
        self._fabric: SwitchAggregation | None = None
        self._by_hosts: MechanismExecutor | None = None
        self._multicast = join_multicast(mechanism, context, controller, job, address)
        if mechanism.fabric_use is not None and not mechanism.sends_messages:
            by_hosts = self._by_hosts = MechanismExecutor(
                find_fallback(fallback),
                context.world_size,
                context.rank,
                context.transport,
                segment_bytes=context.segment_bytes,
            )
            self._fabric = SwitchAggregation(
                context,
                controller,
                job,
                address,
                lambda values: by_hosts.allreduce(values, False),
                mechanism.fabric_use,
                lanes,
            )
        self._switch = self._fabric or self._multicast
        self._executors = channels(mechanism, context, self._fabric, self._multicast)
        # Tensors that only the switch sums need no detour over float32.
        self._native = self._fabric is not None and self._executors[0].only_fabric
        # Codes are agreed for a whole tensor, so they match the engine's only if it gets whole tensors.
        whole = self._native and mechanism.schedule(context.world_size).pieces == 1
        self._cut = self.tensor_cut if whole else None
        self._devices: dict[Device, DeviceReduction] = {}
        self._codes: Any = None  # Gloo group for the devices' codes: it is used by another thread than the executor's
        self._agreement = Agreement(context)
        self._confirms = context.in_script and not self._native  # else prologues do
        self._starting = SerialExecutor("start")
        self.completing = CompletionThreads(job)
        self._begun = 0
        self._asked: list[queue.SimpleQueue[RunningRequest | None]] = [queue.SimpleQueue() for _ in self._executors]
        self._lock = threading.Lock()
        self._closing = False
        self._broken: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, args=channel, name="collective", daemon=True)
            for channel in zip(self._executors, self._asked, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def tensor_cut(self) -> TensorCut | None:
        return self._fabric.session.place.tensor_cut if self._fabric is not None else None

    def allreduce(
        self, tensor: Tensor, average: bool, future: torch.futures.Future[Tensor] | None = None
    ) -> torch.futures.Future[Tensor]:
        future = torch.futures.Future() if future is None else future
        try:
            device = device_of(tensor)
            if device is not None:
                future = device.future()
            dtype = wire_dtype(tensor, average)
            if self._native:
                dtype = tensor.dtype
            work = None if device is not None else host_request(tensor, dtype, average, future)
            # Numbered in the order of the switch's stream, which this lock defines.
            with self._lock:
                if self._closing:
                    raise RunError("this collective is closed")
                since = time.monotonic()
                if device is not None:
                    go_on = self._ask(device, tensor, dtype, average, future)
                    self._starting.put(lambda: self._start(go_on, since, future))
                elif work is not None and self._starting.idle and not self._confirms:
                    self._begin(work, since)
                elif work is not None:
                    kind = work.values.numel(), tensor.dtype, average
                    self._starting.put(
                        lambda: self._start(lambda give: self._begin_alike(give, work, *kind), since, future)
                    )
        except HostlibError as error:
            refuse(future, error)
        return future

    def _ask(
        self, device: Device, tensor: Tensor, dtype: torch.dtype, average: bool, future: Any
    ) -> Callable[[Callable[[ReduceRequest], None]], None]:
        try:
            if device not in self._devices:
                self._devices[device] = DeviceReduction(device, self._context.world_size, self._cut, self._agree)
            go_on = self._devices[device].ask(tensor, dtype, average, future)
            elements, of = tensor.numel(), tensor.dtype
        except HostlibError as error:
            self._broken = error  # The other ranks went on without it.
            raise

        def confirmed(give: Callable[[ReduceRequest], None]) -> None:
            self._agreement.confirm(elements, of, average)  # The codes of equally many blocks are agreed on.
            go_on(give)

        return confirmed

    def _begin_alike(
        self,
        give: Callable[[ReduceRequest], None],
        work: ReduceRequest,
        elements: int,
        dtype: torch.dtype,
        average: bool,
    ) -> None:
        if self._confirms:
            self._agreement.confirm(elements, dtype, average)
        give(work)

    def _agree(self, codes: Tensor) -> None:
        """Maximum of codes over the ranks; codes as in DeviceReduction."""
        if self._codes is None:
            self._codes = self._context.another_gloo()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]
        # Gloo has no int16; positive float16 numbers sort like their bits.
        self._codes.allreduce([codes.view(torch.float16)], options).wait()

    def _start(self, go_on: Callable[[Callable[[ReduceRequest], None]], None], since: float, future: Any) -> None:
        error = self._broken or self._guarded(since, lambda: go_on(lambda request: self._begin(request, since)))
        if error is not None:
            self.completing.put(partial(refuse, future, error))

    def _begin(self, request: ReduceRequest, since: float) -> None:
        channel = self._begun % len(self._executors)
        self._begun += 1
        playing = self._executors[channel].begin(request.values, request.average)
        self._asked[channel].put(RunningRequest(request, playing, since, self.completing.reserve()))

    def _run(self, executor: MechanismExecutor, asked_of_it: queue.SimpleQueue[RunningRequest | None]) -> None:
        while True:
            try:
                asked = asked_of_it.get(timeout=TEND_S)
            except queue.Empty:
                self._guarded(time.monotonic(), self._tend)
                continue
            if asked is None:
                return
            self._reduce(executor, asked)

    def _tend(self) -> None:
        if self._switch is not None and self._broken is None:
            self._switch.tend()

    def _reduce(self, executor: MechanismExecutor, asked: RunningRequest) -> None:
        error = self._broken or self._guarded(asked.since, lambda: executor.finish(asked.playing))
        error = error or self._guarded(asked.since, asked.request.deliver)
        self.completing.put(partial(asked.request.end, error), asked.place)

    def _guarded(self, since: float, do: Callable[[], None]) -> Exception | None:
        """Return the exception that `do` raised.

        Any exception but a refused sum breaks the stream: this rank is no longer in step with the others.
        """
        try:
            do()
            return None
        except OverflowError as refused:
            return refused
        except (HostlibError, Cancelled) as error:
            self._broken = error
        except Exception as error:
            self._broken = self._context.explain(since, error)
        return self._broken

    def stats(self) -> dict[str, int] | None:
        return self._switch.stats() if self._switch is not None else None

    @property
    def failures(self) -> list[dict[str, Any]]:
        """One record for each failure of the fabric; see SwitchAggregation."""
        return self._switch.failures if self._switch is not None else []

    def close(self, graceful: bool = True) -> None:
        """Close the collective. `graceful`: wait until the other ranks have the results they asked for."""
        with self._lock:
            self._closing = True
        if self._switch is not None and not graceful:
            self._switch.cancel()
        patience_s = self._context.deadline_s if graceful else CLOSE_S
        self._starting.close(patience_s)
        give_up = time.monotonic() + patience_s
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join(timeout=max(0.0, give_up - time.monotonic()))
        self.completing.close(max(CLOSE_S, give_up - time.monotonic()))
        settled = graceful and self._broken is None and not any(thread.is_alive() for thread in self._threads)
        if settled:
            for executor in self._executors:
                self._guarded(time.monotonic(), executor.close)
        if self._switch is None:
            return
        if settled:
            self._guarded(time.monotonic(), self._switch.settle)
            if self._by_hosts is not None:
                self._guarded(time.monotonic(), self._by_hosts.close)
        self._switch.close()
