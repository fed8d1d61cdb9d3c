"""A virtual GPU worker: it computes by waiting for as long as a trace says, and sums real tensors meanwhile.

An iteration is one of data-parallel training: the forward pass, the backward pass, whose steps hand their gradients to
the mechanism, and the wait until all are summed. Needs torch; started by emulation/experiments/cell.py through the
fork_server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from emulation.experiments.packet_counts import PacketCounts, engine_counts
from emulation.experiments.replayed_exchanges import Exchanges, serve_exchanges
from emulation.experiments.replayed_tensors import ReplayedTensors
from emulation.experiments.worker_options import DONE, MEASURED, WARM_UP, ReplayOptions
from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.serve import serve
from hostlib.errors import HostlibError, RunError
from hostlib.launch.fork_server import say
from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.schedules.contract import find_collective
from hostlib.strategies.strategy import choose
from hostlib.system.process import write_whole
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import MulticastTransport, Transport


@dataclass(slots=True)
class WorkerReport:
    """A worker's measurements; times are time.monotonic_ns().

    Attributes:
        start_ns: common start of the measured iterations.
        ends_ns: when each measured iteration ended on this worker.
        late_ns: total delay of its wake-ups over the measured iterations.
        latest_ns: the longest such delay in each of them.
        spans: of the last iteration: (kind, name, begin, end).
        packets: in the busier direction, during the measured iterations (PacketCounts.busier).
        retransmits: sent during them.
        marked: received during them by its host, which said that a queue had grown (ECN).
        link_sent, link_received: bytes on Gloo's interface during them, if the interface is known.
        mismatches: elements that are not what they must be.
        engine: what its packet engines counted meanwhile (engine_counts); None without any.
        peak_bytes: of this process's resident memory, if it trained; 0 if it did not.
    """

    rank: int
    start_ns: int = 0
    ends_ns: list[int] = field(default_factory=list)
    late_ns: int = 0
    latest_ns: list[int] = field(default_factory=list)
    spans: list[tuple[str, str, int, int]] = field(default_factory=list)
    packets: int = 0
    retransmits: int = 0
    marked: int = 0
    link_sent: int | None = None
    link_received: int | None = None
    mismatches: int = 0
    engine: dict[str, int] | None = None
    peak_bytes: int = 0


class Barrier:
    """A barrier of all workers and of the process that reads the counters.

    Args:
        workers: their number; None if another process decides when to continue.
    """

    def __init__(self, store: dist.Store, rank: int, workers: int | None) -> None:
        self._store, self._rank, self._workers = store, rank, workers

    def at(self, phase: str) -> int:
        """Wait for the others; returns the common start time, which is the same for all if their clocks are."""
        self._store.set(f"{phase}/{self._rank}", "")
        if self._workers is None:
            go_ns = int(self._store.get(f"{phase}/go"))
            time.sleep(max(0, go_ns - time.monotonic_ns()) / 1e9)
            return go_ns
        self._store.wait([f"{phase}/{rank}" for rank in range(self._workers)])
        return time.monotonic_ns()


class Worker:
    """A worker's iterations.

    Args:
        exchanges: the strategy's own messages; None if there are none.
    """

    def __init__(
        self, options: ReplayOptions, tensors: ReplayedTensors, exchanges: Exchanges | None, rank: int
    ) -> None:
        self.options, self.tensors, self.exchanges, self.report = options, tensors, exchanges, WorkerReport(rank)
        self._latest_ns = 0

    def iterate(self, begin_ns: int) -> int:
        """Do one iteration; returns when it ended."""
        spans: list[tuple[str, str, int, int]] = []
        futures: dict[int, torch.futures.Future[Any]] = {}

        def ask(number: int) -> None:
            asked = time.monotonic_ns()
            future, name = self._begin(number)
            future.add_done_callback(lambda _: spans.append(("communication", name, asked, time.monotonic_ns())))
            futures[number] = future

        at = begin_ns
        for step, duration_ns in enumerate(self.options.forward):
            at = self._come_to(step, at, ask, futures) + duration_ns
        self._compute(at)
        spans.append(("forward", "forward", begin_ns, at))
        at = self._errands(at, ask, futures)
        backward_begin = at
        for step, (duration_ns, tensors) in enumerate(self.options.backward, len(self.options.forward)):
            at = self._come_to(step, at, ask, futures) + duration_ns
            if tensors:
                self._compute(at)
            for number in tensors:
                ask(number)
        self._compute(at)
        spans.append(("backward", "backward", backward_begin, time.monotonic_ns()))
        for future in futures.values():
            future.wait()
        self.report.spans = spans
        return time.monotonic_ns()

    def _begin(self, number: int) -> tuple[torch.futures.Future[Any], str]:
        """Start to sum a tensor, or its exchange; returns the future and its label."""
        if self.exchanges is not None and number in self.exchanges:
            return self.exchanges.begin(number), f"exchange {number} ({self.exchanges.size(number) / 1e6:.3g} MB)"
        return self.tensors.begin(number)

    def _come_to(
        self, step: int, at_ns: int, ask: Callable[[int], None], futures: Mapping[int, torch.futures.Future[Any]]
    ) -> int:
        """Begin the gathers that a step asks for, and wait for those that it needs; returns when it may begin."""
        asked, awaited = self.options.asked[step], self.options.awaited[step]
        if asked or awaited:
            self._compute(at_ns)
        for number in asked:
            ask(number)
        for future in (futures[number] for number in awaited):
            if not future.done():
                future.wait()
                at_ns = max(at_ns, time.monotonic_ns())
        return at_ns

    def _errands(
        self, forward_end_ns: int, ask: Callable[[int], None], futures: Mapping[int, torch.futures.Future[Any]]
    ) -> int:
        """Do the exchanges between the passes; returns when the backward pass may begin."""
        mine = [number for number in self.options.errands if self.exchanges is not None and number in self.exchanges]
        for number in mine:
            ask(number)
        for number in mine:
            futures[number].wait()
        return time.monotonic_ns() if mine else forward_end_ns

    def _compute(self, until_ns: int) -> None:
        """Be busy until `until_ns`, from which the next step counts: a GPU would not be late as this process may be."""
        left_ns = until_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        self._was_late(max(0, time.monotonic_ns() - until_ns))

    def _was_late(self, late_ns: int) -> None:
        self.report.late_ns += late_ns
        self._latest_ns = max(self._latest_ns, late_ns)

    def run(self, barrier: Barrier, here: LaunchEnvironment) -> WorkerReport:
        """Do the warm-up and the measured iterations.

        Raises:
            RunError: the fabric failed, and the hosts summed instead.
        """
        self._iterations(barrier.at(WARM_UP), self.options.warm_up)
        self.report = WorkerReport(self.report.rank, start_ns=barrier.at(MEASURED))
        begun, carried = self.tensors.stats(), carried_bytes()
        before = PacketCounts.of(begun, here.port)
        self.report.ends_ns = self._iterations(self.report.start_ns, self.options.iterations)
        done = self.tensors.stats()
        packets = PacketCounts.of(done, here.port) - before
        self.report.engine = engine_counts(done, begun)
        self.report.packets, self.report.retransmits = packets.busier(self.tensors.multicasts), packets.again
        self.report.marked = packets.marked
        if carried is not None and (end := carried_bytes()) is not None:
            self.report.link_sent, self.report.link_received = end[0] - carried[0], end[1] - carried[1]
        barrier.at(DONE)
        if self.tensors.failures:
            raise RunError("the fabric failed: part of this was summed by the hosts")
        if self.options.warm_up + self.options.iterations:
            self.report.mismatches = self.tensors.wrong_elements
            self.report.mismatches += 0 if self.exchanges is None else self.exchanges.mismatches
        return self.report

    def _iterations(self, start_ns: int, count: int) -> list[int]:
        ends: list[int] = []
        for _ in range(count):
            self._latest_ns = 0
            ends.append(self.iterate(ends[-1] if ends else start_ns))
            for late_ns in [] if self.exchanges is None else self.exchanges.take_late_ns():
                self._was_late(late_ns)
            self.report.latest_ns.append(self._latest_ns)
        return ends


def carried_bytes() -> tuple[int, int] | None:
    """Bytes that Gloo's interface has sent and received so far. Source: sysfs-class-net-statistics."""
    counters = Path("/sys/class/net", os.environ.get("GLOO_SOCKET_IFNAME") or "-", "statistics")
    try:
        return int((counters / "tx_bytes").read_text()), int((counters / "rx_bytes").read_text())
    except OSError:
        return None


def replay(options: ReplayOptions, here: LaunchEnvironment) -> WorkerReport | None:
    """Run a worker, which returns its report, or a server, which returns None.

    Raises:
        HostlibError: a rank or the fabric is missing.
    """
    torch.set_num_threads(1)
    choice = choose(options.mechanism)
    mechanism = choice.mechanism
    group = join_group(
        here, "replay", options.deadline_s, choice.servers, choice.strategy.servers, slots=options.slots,
        segment_bytes=options.segment_bytes,
        patience_s=options.deadline_s,  # hosts must not sum instead, however slow a switch is
    )  # fmt: skip
    with group as (context, job):
        number = context.rank - context.world_size
        if number >= 0:
            if number < mechanism.servers:
                serve(mechanism, context, options.controller, job, options.address)
            elif (transport := _own_transport(options, context)) is not None:
                serve_exchanges(options.roles, options.hosts, transport, options.warm_up + options.iterations)
            context.detector.wait_for_workers()
            return None
        patience = timedelta(seconds=options.deadline_s)
        store = dist.TCPStore(here.host, here.port, is_master=False, timeout=patience, wait_for_workers=False)
        summing, summing_job = context.own_part(options.group) if options.group else (context, job)
        collectives = tuple(find_collective(name) if name else None for name in options.collectives)
        tensors = ReplayedTensors(
            mechanism, options.elements, collectives, summing, summing_job, options.controller, options.address
        )
        transport = _own_transport(options, context)
        exchanges = (
            None
            if transport is None
            else Exchanges(options.roles, options.hosts, transport, _own_multicast(options, context))
        )
        finished = False
        try:
            workers = LaunchEnvironment(here.rank, context.world_size, here.host, here.port)
            barrier = Barrier(store, context.rank, None if options.result else context.world_size)
            report = Worker(options, tensors, exchanges, context.rank).run(barrier, workers)
            finished = True
            return report
        finally:
            if exchanges is not None:
                exchanges.close(graceful=finished)
            tensors.close(graceful=finished)


def _own_transport(options: ReplayOptions, context: RankContext) -> Transport | None:
    """Transport of the strategy's own messages, if it has any: made by all of its processes."""
    if not options.own_messages:
        return None
    assert context.another_transport is not None, "only a strategy's hosts have messages of their own"
    return context.another_transport()


def _own_multicast(options: ReplayOptions, context: RankContext) -> MulticastTransport | None:
    """This worker's endpoint for the switch's multicasts of such messages."""
    if not any(role.multicasts for role in options.roles):
        return None
    assert context.another_multicast is not None, "only a strategy's hosts have messages of their own"
    return context.another_multicast(options.controller, options.address)


def main() -> None:
    """Run in a process forked by the fork_server, or under torchrun."""
    here = LaunchEnvironment.from_environment()
    options = ReplayOptions.from_json(os.environ.pop(OPTIONS_VARIABLE))

    def work() -> WorkerReport | None:
        report = replay(options, here)
        if report is not None and report.mismatches:
            raise RunError(f"{report.mismatches} elements are not what the collectives must leave")
        return report

    leave(here, options.result, work)


def leave(here: LaunchEnvironment, result: str, work: Callable[[], WorkerReport | None]) -> None:
    """Do a worker's work, write its report to the file (or print it, if there is none), and end the process."""
    try:
        report = work()
    except HostlibError as error:
        say(event="failed", rank=here.rank, error=error.as_json())
        os._exit(1)
    if report is not None and result:
        write_whole(Path(result), asdict(report))
    elif report is not None:
        say(event="report", report=asdict(report))
    os._exit(0)


if __name__ == "__main__":
    main()
