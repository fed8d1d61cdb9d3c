"""A mechanism at work on this rank's tensors: what the torch backend and the DDP hook call."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib._engine import Cancelled
from hostlib.device import Device, device_of
from hostlib.device_sum import Cut, DeviceSums
from hostlib.errors import HostlibError, RunError
from hostlib.fabric import SwitchFabric
from hostlib.group import Group
from hostlib.library import CLOSE_S, LibraryCollective, library_collective
from hostlib.multicast import Streams, SwitchMulticast
from hostlib.registry import Mechanism, find_fallback
from hostlib.runtime import Runtime, Started
from hostlib.schedule import FabricUse
from hostlib.sequence import Sequence
from hostlib.server import FabricServer
from hostlib.summand import Summand, host_summand, refuse, travelling

DEFAULT_FALLBACK = "ring"
TEND_S = 0.1  # how often an idle rank looks whether another has found the fabric dead


class Collective(Protocol):
    """Sums tensors over the ranks. Every rank must ask for the same ones in the same order."""

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        """Sum or average a tensor in place; the future holds it, or a HostlibError."""
        ...

    def stats(self) -> dict[str, int] | None:
        """The packet engine's counters, when there is one."""
        ...

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What is known of each failure of the fabric."""
        ...

    def close(self, graceful: bool = True) -> None: ...


def chunks(elements: int, elements_per_packet: int) -> int:
    """Slots that the switch completes for one all-reduce: the prologue and the packets (docs/protocol.md)."""
    return 0 if elements == 0 else 1 + -(-elements // elements_per_packet)


@dataclass(slots=True)
class Reduction:
    """A summand on its way over the ranks."""

    summand: Summand
    started: Started
    since: float


class ScheduledCollective:
    """A mechanism of ours: its schedule, begun by the caller and finished by a thread, in issue order.

    With servers there are several such threads (see `channels`). What is on a device, and what comes after it until that
    has begun, another thread begins.

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
        self._multicast = join_multicast(mechanism, group, controller, job, address)
        if mechanism.fabric_use is not None and not mechanism.sends_messages:
            by_hosts = Runtime(find_fallback(fallback), group.world_size, group.rank, group.peers)
            self._fabric = SwitchFabric(
                group,
                controller,
                job,
                address,
                lambda values: by_hosts.allreduce(values, False),
                mechanism.fabric_use,
                lanes,
            )
        self._switch = self._fabric or self._multicast
        self._runtimes = channels(mechanism, group, self._fabric, self._multicast)
        # What goes through the switch alone needs no detour over float32.
        self._native = self._fabric is not None and self._runtimes[0].only_fabric
        # Codes are agreed on for a whole tensor: they are the engine's only where it gets whole tensors.
        self._cut: Cut | None = None
        if self._fabric is not None and self._native and mechanism.schedule(group.world_size).pieces == 1:
            place = self._fabric.session.place  # the first, which is every rank's; later ones come at different moments
            self._cut = Cut(place.elements, place.pools[0].slots, len(place.pools))
        self._devices: dict[Device, DeviceSums] = {}
        self._codes: Any = None  # Gloo for the devices' codes: another thread's than the runtime's
        self._starting = Sequence("start")
        self._begun = 0
        self._asked: list[queue.SimpleQueue[Reduction | None]] = [queue.SimpleQueue() for _ in self._runtimes]
        self._lock = threading.Lock()
        self._closing = False
        self._broken: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, args=channel, name="collective", daemon=True)
            for channel in zip(self._runtimes, self._asked, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def elements_per_packet(self) -> int:
        return self._fabric.session.place.elements if self._fabric is not None else 0

    def allreduce(self, tensor: Tensor, average: bool) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        try:
            device = device_of(tensor)
            if device is not None:
                future = device.future()
            dtype = travelling(tensor, average)
            if self._native:
                dtype = tensor.dtype
            work = None if device is not None else host_summand(tensor, dtype, average, future)
            # In the order of the switch's stream, which is that of this lock.
            with self._lock:
                if self._closing:
                    raise RunError("this collective is closed")
                since = time.monotonic()
                if device is not None:
                    go_on = self._ask(device, tensor, dtype, average, future)
                    self._starting.put(lambda: self._start(go_on, since, future))
                elif work is not None and self._starting.idle:
                    self._begin(work, since)
                elif work is not None:
                    self._starting.put(lambda: self._start(lambda give: give(work), since, future))
        except HostlibError as wrong:
            refuse(future, wrong)
        return future

    def _ask(
        self, device: Device, tensor: Tensor, dtype: torch.dtype, average: bool, future: Any
    ) -> Callable[[Callable[[Summand], None]], None]:
        try:
            if device not in self._devices:
                self._devices[device] = DeviceSums(device, self._group.world_size, self._cut, self._agree)
            return self._devices[device].ask(tensor, dtype, average, future)
        except HostlibError as wrong:
            self._broken = wrong  # The other ranks went on.
            raise

    def _agree(self, codes: Tensor) -> None:
        """The maximum over the ranks, of codes as DeviceSums has them."""
        if self._codes is None:
            self._codes = self._group.another_gloo()
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        # Gloo has no int16; positive float16 are in the order of their bits.
        self._codes.allreduce([codes.view(torch.float16)], options).wait()

    def _start(self, go_on: Callable[[Callable[[Summand], None]], None], since: float, future: Any) -> None:
        wrong = self._broken or self._guarded(since, lambda: go_on(lambda summand: self._begin(summand, since)))
        if wrong is not None:
            refuse(future, wrong)

    def _begin(self, summand: Summand, since: float) -> None:
        channel = self._begun % len(self._runtimes)
        self._begun += 1
        started = self._runtimes[channel].begin(summand.values, summand.average)
        self._asked[channel].put(Reduction(summand, started, since))

    def _run(self, runtime: Runtime, asked_of_it: queue.SimpleQueue[Reduction | None]) -> None:
        while True:
            try:
                asked = asked_of_it.get(timeout=TEND_S)
            except queue.Empty:
                self._guarded(time.monotonic(), self._tend)
                continue
            if asked is None:
                return
            self._reduce(runtime, asked)

    def _tend(self) -> None:
        if self._switch is not None and self._broken is None:
            self._switch.tend()

    def _reduce(self, runtime: Runtime, asked: Reduction) -> None:
        wrong = self._broken or self._guarded(asked.since, lambda: runtime.finish(asked.started))
        wrong = wrong or self._guarded(asked.since, asked.summand.deliver)
        if wrong is not None:
            asked.summand.refuse(wrong)

    def _guarded(self, since: float, do: Callable[[], None]) -> Exception | None:
        """What went wrong. All but a refused sum breaks the stream: the ranks are no longer where the others are."""
        try:
            do()
            return None
        except OverflowError as refused:
            return refused
        except (HostlibError, Cancelled) as wrong:
            self._broken = wrong
        except Exception as wrong:
            self._broken = self._group.explain(since, wrong)
        return self._broken

    def stats(self) -> dict[str, int] | None:
        return self._switch.stats() if self._switch is not None else None

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What is known of each failure of the fabric; see SwitchFabric."""
        return self._switch.failures if self._switch is not None else []

    def close(self, graceful: bool = True) -> None:
        """End. `graceful`: stay until the other ranks have what they asked for, too."""
        with self._lock:
            self._closing = True
        if self._switch is not None and not graceful:
            self._switch.cancel()
        patience_s = self._group.deadline_s if graceful else CLOSE_S
        self._starting.close(patience_s)
        give_up = time.monotonic() + patience_s
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join(timeout=max(0.0, give_up - time.monotonic()))
        settled = graceful and self._broken is None and not any(thread.is_alive() for thread in self._threads)
        if settled:
            for runtime in self._runtimes:
                self._guarded(time.monotonic(), runtime.close)
        if self._switch is None:
            return
        if settled:
            self._guarded(time.monotonic(), self._switch.settle)
        self._switch.close()


def channels(
    mechanism: Mechanism,
    group: Group,
    fabric: SwitchFabric | None = None,
    multicast: SwitchMulticast | None = None,
) -> list[Runtime]:
    """This host's runtimes of a mechanism, which share the all-reduces; with a fabric, whose order is one, only one."""
    count = channel_count(mechanism, group)
    return [
        Runtime(mechanism, group.world_size, group.rank, group.peers, fabric, channel, count, multicast)
        for channel in range(count)
    ]


def channel_count(mechanism: Mechanism, group: Group) -> int:
    """How many all-reduces each of a mechanism's hosts is at."""
    return max(1, min(mechanism.channels, group.peers.channels))


def join_multicast(
    mechanism: Mechanism, group: Group, controller: str, job: str, address: str
) -> SwitchMulticast | None:
    """This host's place where the switch multicasts what a mechanism's hosts have summed; None where it does not.

    Raises:
        JoinError: see hostlib.join.
    """
    schedule = None if mechanism.build is None else mechanism.schedule(group.world_size)
    if schedule is None or schedule.fabric_use is not FabricUse.MULTICAST:
        return None
    if schedule.servers:
        streams = Streams.of_server(group.world_size, channel_count(mechanism, group))
    else:
        streams = Streams.of_workers(group.world_size)
    return SwitchMulticast(group, controller, job, address, streams)


def serve(mechanism: Mechanism, group: Group, controller: str, job: str, address: str, lanes: int = 1) -> None:
    """A server's part, until all workers have closed their collectives.

    Args:
        controller, job, address, lanes: as for the workers' collectives; for what goes through the switch.

    Raises:
        JoinError: see hostlib.join.
        RunError, RuntimeError: a message did not come through.
    """
    multicast = join_multicast(mechanism, group, controller, job, address)
    if multicast is not None:
        with closing(multicast):
            _serve_channels(mechanism, group, multicast)
        return
    use = mechanism.fabric_use
    with nullcontext() if use is None else closing(FabricServer(use, group, controller, job, address, lanes)):
        _serve_channels(mechanism, group)


def _serve_channels(mechanism: Mechanism, group: Group, multicast: SwitchMulticast | None = None) -> None:
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run(runtime: Runtime) -> None:
        try:
            runtime.serve()
            ended.put(None)
        except Exception as wrong:
            ended.put(wrong)

    runtimes = channels(mechanism, group, multicast=multicast)
    threads = [threading.Thread(target=run, args=[runtime], daemon=True) for runtime in runtimes]
    for thread in threads:
        thread.start()
    for _ in threads:
        # Those that are left when one failed wait for what may never come.
        if (wrong := ended.get()) is not None:
            raise wrong


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
        HostlibError: a library yardstick whose library is not here.
        RunError: the mechanism needs servers, and the group has none.
    """
    if mechanism.servers and group.hosts is None:
        raise RunError(
            f"{mechanism.name} needs servers beside the ranks, as `hostlib train` and python -m hostlib.train have them"
        )
    if mechanism.build is None:
        return library_collective(mechanism, group)
    return ScheduledCollective(mechanism, group, controller, job, address, fallback, lanes)
