"""Streams of messages through the embedded switch: every host gets every source's bytes, however bad the links are."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib._engine import Cancelled
from hostlib.errors import HostlibError, JoinError, RunError
from hostlib.fabric.multicast import Streams, SwitchMulticast
from hostlib.protocol.slots import POOLS_OF_STREAMS
from hostlib.transport.failure_detector import FailureDetector, Heartbeat
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import Pending, settle
from tests.conftest import Fabric

WORKERS = 3
PATIENCE_S = 1.0
PACKET_BYTES = 1024  # of values
SIZES = (0, 1, 3, PACKET_BYTES, 0, PACKET_BYTES + 1, 70 * PACKET_BYTES + 5, 300_000, 17, 16, 15, 64 * PACKET_BYTES)
STREAMS = {"of a server": Streams.of_server(WORKERS, 2), "of workers": Streams.of_workers(WORKERS)}


class Board:
    """Everybody's signs of life, on which all are alive and well."""

    def __init__(self, hosts: int) -> None:
        self.signs = [Heartbeat() for _ in range(hosts)]
        self.lock = threading.Lock()


@dataclass
class Signs:
    """One host's."""

    board: Board
    host: int

    def publish(self, **fields: Any) -> None:
        with self.board.lock:
            self.board.signs[self.host] = replace(self.board.signs[self.host], **fields)

    def heartbeats(self) -> list[Heartbeat]:
        return list(self.board.signs)

    def exchange(self) -> None: ...

    def silent(self) -> list[int]:
        return []

    def explain(self, waited_s: float, otherwise: Any) -> Exception:
        return cast(Exception, otherwise() if callable(otherwise) else otherwise)


@contextmanager
def hosts_of(
    fabric: Fabric,
    job: str,
    streams: Streams,
    deadline_s: float = 20.0,
    detectors: list[FailureDetector] | None = None,
) -> Iterator[list[SwitchMulticast]]:
    """All of a job's hosts: workers, then the server if there is one.

    Args:
        detectors: of the hosts; None: all hosts are alive and well.
    """
    count = WORKERS + (streams.policy == "chunk")

    board, store = Board(count), dist.HashStore()

    def join(number: int) -> SwitchMulticast:
        gloo = dist.ProcessGroupGloo(store, number, count, timedelta(seconds=deadline_s))
        signs = cast(FailureDetector, Signs(board, number)) if detectors is None else detectors[number]
        hosts = GlooTransport(gloo)
        group = RankContext(
            number, WORKERS, gloo, signs, deadline_s, lambda: None, lambda: None, hosts, patience_s=PATIENCE_S
        )
        return SwitchMulticast(group, fabric.http, job, "127.0.0.1", streams)

    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        joined = list(pool.map(join, range(count)))
        yield [stack.enter_context(closing(host)) for host in joined]


@contextmanager
def detectors_of(streams: Streams) -> Iterator[list[FailureDetector]]:
    """Real ones."""
    servers = int(streams.policy == "chunk")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                closing(FailureDetector("127.0.0.1", store.port, "group", n, WORKERS + servers, servers))
            )
            for n in range(WORKERS + servers)
        ]


def message(stream: int, number: int, size: int) -> Tensor:
    return torch.randint(
        0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1000 * stream + number)
    )


def played(host: SwitchMulticast, number: int, streams: Streams, sizes: tuple[int, ...], pause_s: float = 0) -> int:
    """A host's part of all streams at once; how many messages came otherwise than they were sent.

    Args:
        pause_s: between messages.
    """
    got = []
    for n, size in enumerate(sizes):
        for stream, source in enumerate(streams.sources):
            if source == number:
                values = message(stream, n, size)
                host.send(stream, values)
                values.zero_()  # It is the caller's again.
            elif number < WORKERS:
                into = torch.full((size,), 99, dtype=torch.uint8)
                got.append((host.receive(stream, into), into, message(stream, n, size)))
        time.sleep(pause_s)
    settle([coming for coming, _, _ in got])
    host.complete()
    host.settle()
    return sum(not torch.equal(into, right) for _, into, right in got)


@pytest.mark.parametrize("slots", [2, None], ids=["two slots for each", "half of the slots"])
@pytest.mark.parametrize("kind", STREAMS)
def test_every_host_has_every_sources_bytes(kind: str, slots: int | None, any_fabric: Fabric) -> None:
    streams = STREAMS[kind]
    if slots is not None:
        streams = replace(streams, pool=slots * len(streams.sources) // POOLS_OF_STREAMS)
        assert streams.slots == slots
    # Few slots are many round trips, and on bad links each of them may take a timeout.
    sizes = SIZES if slots is None else SIZES[:6]
    before = any_fabric.status()
    with hosts_of(any_fabric, f"{kind}-{slots}", streams) as hosts, ThreadPoolExecutor(len(hosts)) as pool:
        mismatches = list(pool.map(lambda number: played(hosts[number], number, streams, sizes), range(len(hosts))))
        stats = [host.stats() for host in hosts]
    assert mismatches == [0] * len(hosts)
    chunks = sum(-(-size // PACKET_BYTES) for size in sizes)
    # Once, whoever it is for, and however often it came.
    for switch, earlier in zip(any_fabric.status()["switches"], before["switches"], strict=True):
        assert switch["events"]["chunk"] - earlier["events"]["chunk"] == len(streams.sources) * chunks
    for number, counted in enumerate(stats):
        mine = sum(source == number for source in streams.sources)
        others = len(streams.sources) - mine if number < WORKERS else 0
        assert counted["chunks"] == (mine + others) * chunks
        # One acknowledgement for half a window; what is more is for what was lost, or late.
        told = others * (2 * chunks // streams.slots + 1)
        answers = sum(each["retransmits"] for each in stats) if mine else 0
        assert counted["packets_sent"] <= mine * chunks + told + counted["retransmits"] + answers


def test_a_host_that_never_sends_is_named(any_fabric: Fabric) -> None:
    with hosts_of(any_fabric, "silent", Streams.of_server(WORKERS, 1), deadline_s=3.0) as hosts:
        waiting = hosts[1].receive(0, torch.empty(10))
        with pytest.raises(RunError, match=r"^server 0 is alive but sent nothing through the switch for 3 s"):
            waiting.wait()
        assert hosts[1].failures == []


def test_streams_of_workers_need_two_of_them(any_fabric: Fabric) -> None:
    signs = cast(FailureDetector, Signs(Board(1), 0))
    group = RankContext(0, 1, None, signs, 5.0, lambda: None, lambda: None, cast(Any, None))
    with pytest.raises(JoinError, match=r"world size 1 is not in 2..32, the ranks of policy peers"):
        SwitchMulticast(group, any_fabric.http, "alone", "127.0.0.1", Streams.of_workers(1))


# ---- the switch fails, and comes back: the last tests of a fabric ------------------------------------------------------


class Rounds:
    """How many messages of each stream all hosts exchange: as many as they like, until `end` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = 0
        self._last: int | None = None

    def __call__(self, number: int) -> bool:
        """Whether there is a message of this number."""
        with self._lock:
            if self._last is not None:
                return number < self._last
            self._begun = max(self._begun, number + 1)
            return True

    @property
    def begun(self) -> int:
        return self._begun

    def end(self) -> None:
        with self._lock:
            self._last = self._begun + 3


@dataclass(frozen=True)
class Pace:
    """How a host plays: it sleeps before each message, and waits for messages so many behind the latest."""

    pause_s: float
    behind: int


# One in step, one that is slow, one that asks for messages early; the server is never waited for.
PACES = (Pace(0.01, 1), Pace(0.03, 1), Pace(0.01, 20), Pace(0.015, 0))
LONG_S = 60.0


def played_on(host: SwitchMulticast, number: int, streams: Streams, rounds: Rounds) -> int:
    """A host's part of all streams while there are rounds; how many messages came otherwise than they were sent."""
    pace, wrong = PACES[number], 0
    coming: deque[tuple[Pending, Tensor, int, int]] = deque()

    def take() -> bool:
        message_, into, stream, n = coming.popleft()
        message_.wait()
        return not torch.equal(into, message(stream, n, into.numel()))

    for n in itertools.takewhile(rounds, itertools.count()):
        time.sleep(pace.pause_s)
        size = SIZES[n % len(SIZES)]
        for stream, source in enumerate(streams.sources):
            if source == number:
                values = message(stream, n, size)
                host.send(stream, values)
                values.zero_()
            elif number < WORKERS:
                into = torch.full((size,), 99, dtype=torch.uint8)
                coming.append((host.receive(stream, into), into, stream, n))
        while len(coming) > pace.behind * len(streams.sources):
            wrong += take()
    while coming:
        wrong += take()
    host.complete()
    host.settle()
    return wrong


def wait_until(so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + LONG_S
    while not so():
        assert time.monotonic() < give_up, f"{what}: not within {LONG_S:.0f} s"
        time.sleep(0.02)


def strike(fabric: Fabric, how: signal.Signals, number: int = 0) -> None:
    """A switch that is there; the controller starts it again."""
    state = json.loads((fabric.state_dir / "controller.json").read_text())
    pids = [process["pid"] for process in state["processes"].values()]
    with contextlib.suppress(ProcessLookupError):  # Its controller is about to start another one.
        os.kill(pids[number % len(pids)], how)


def chunks(fabric: Fabric) -> int:
    """That the switches have multicast since they were started."""
    return sum(switch["events"]["chunk"] for switch in fabric.status()["switches"] if switch["up"])


@dataclass
class Playing:
    """Hosts that exchange messages until they are told to end."""

    fabric: Fabric
    hosts: list[SwitchMulticast]
    rounds: Rounds
    results: list[Future[int]]

    def go_on(self) -> None:
        """Until there are more messages."""
        begun = self.rounds.begun
        wait_until(lambda: self.rounds.begun > begun + len(SIZES) or self._over, "more messages")
        self._require_well()

    def return_from(self, failures: int) -> None:
        """Until all hosts have returned from so many failures, or more: whoever is slow may be taken for a dead switch."""

        def returned() -> bool:
            records = [host.failures for host in self.hosts]
            return self._over or all(len(each) >= failures and each[-1]["returned"] for each in records)

        wait_until(returned, f"the return from failure {failures}")
        self._require_well()
        before = chunks(self.fabric)
        wait_until(lambda: chunks(self.fabric) > before or self._over, "chunks through the switch")
        self._require_well()

    @property
    def _over(self) -> bool:
        return any(each.done() for each in self.results)

    def _require_well(self) -> None:
        for each in self.results:
            if each.done():
                raise AssertionError(f"a host has ended: {each.exception()!r}")

    def end(self) -> None:
        """All messages were as they had been sent."""
        self.rounds.end()
        assert [each.result(LONG_S) for each in self.results] == [0] * len(self.hosts)
        for host in self.hosts:
            # On a busy machine a switch that is only slow may be left, too, and shortly before the end for good.
            assert all(failure["returned"] for failure in host.failures[:-1])
            assert sum(failure["by_hosts"] for failure in host.failures) > 0
        assert len({len(host.failures) for host in self.hosts}) == 1


@contextmanager
def playing_on(fabric: Fabric, job: str, streams: Streams, deadline_s: float = LONG_S) -> Iterator[Playing]:
    rounds = Rounds()
    with (
        detectors_of(streams) as detectors,
        hosts_of(fabric, f"{job}-{time.monotonic_ns()}", streams, deadline_s, detectors) as hosts,
        ThreadPoolExecutor(len(hosts)) as pool,
    ):
        results = [pool.submit(played_on, host, n, streams, rounds) for n, host in enumerate(hosts)]
        try:
            yield Playing(fabric, hosts, rounds, results)
        except BaseException:
            for host in hosts:
                host.cancel()
            raise
        finally:
            rounds.end()


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_return_to_the_switch_again_and_again(kind: str, any_fabric: Fabric) -> None:
    with playing_on(any_fabric, kind, STREAMS[kind]) as playing:
        for failure in range(2):
            playing.go_on()
            strike(any_fabric, signal.SIGKILL, failure)
            playing.return_from(failure + 1)
        playing.end()


@pytest.mark.parametrize("any_fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize(
    "kind", ["of a server", pytest.param("of workers", marks=(pytest.mark.slow, pytest.mark.crossed))]
)
def test_streams_return_from_a_switch_that_was_stopped(kind: str, any_fabric: Fabric) -> None:
    """Its controller waits a while before it starts another one."""
    with playing_on(any_fabric, kind, STREAMS[kind]) as playing:
        playing.go_on()
        strike(any_fabric, signal.SIGSTOP)
        playing.return_from(1)
        assert all(host.failures[0]["lost_ms"] < 1000 * LONG_S for host in playing.hosts)
        playing.end()


@pytest.mark.parametrize("any_fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize("moment", ["be_ready", "tell", "first_messages"])
@pytest.mark.parametrize("kind", STREAMS)
def test_the_switch_may_fail_again_during_the_return(kind: str, moment: str, any_fabric: Fabric) -> None:
    """Just before one host says that it is ready, or how many messages it has begun, or returns."""
    with playing_on(any_fabric, kind, STREAMS[kind]) as playing:
        playing.go_on()
        common, struck = playing.hosts[1]._common, threading.Event()
        as_usual = getattr(common, moment)

        def disturbed(*arguments: Any) -> Any:
            if arguments != (0,) and not struck.is_set():
                struck.set()
                strike(any_fabric, signal.SIGKILL)
            return as_usual(*arguments)

        setattr(common, moment, disturbed)
        strike(any_fabric, signal.SIGKILL)
        wait_until(struck.is_set, "the second failure")
        playing.return_from(1)
        playing.end()


@pytest.mark.parametrize("any_fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize("kind", STREAMS)
def test_a_rank_that_dies_while_the_others_stand_still_is_named(kind: str, any_fabric: Fabric) -> None:
    with playing_on(any_fabric, kind, STREAMS[kind], deadline_s=4.0) as playing:
        playing.go_on()
        dead = playing.hosts[2]

        def die(*arguments: Any) -> None:
            cast(Any, dead._context.detector)._ended.set()
            dead._ended.set()
            dead.cancel()

        cast(Any, dead._common).tell = die
        strike(any_fabric, signal.SIGKILL)
        others = [(host, each) for host, each in zip(playing.hosts, playing.results, strict=True) if host is not dead]
        wait_until(lambda: all(host._broken is not None for host, _ in others), "the end of all patience")
        # The error of those that wait for a message is the transport's; their callers explain it.
        errors = [(each.exception(LONG_S), host) for host, each in others]
        assert all(isinstance(error, RuntimeError | HostlibError) for error, _ in errors)
        said = [str(host._broken) for host, _ in others]
        said += [str(host._context.explain(0.0, cast(Exception, error))) for error, host in errors]
    assert all("rank 2 is missing" in line for line in said), said


@pytest.mark.parametrize("any_fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize("still", [False, True], ids=["while it joins", "while it stands still"])
def test_a_host_that_is_closed_on_its_way_back_leaves_nothing(still: bool, any_fabric: Fabric) -> None:
    streams, job = STREAMS["of workers"], f"closed-{time.monotonic_ns()}"
    before = threading.active_count()
    with detectors_of(streams) as detectors, hosts_of(any_fabric, job, streams, detectors=detectors) as hosts:
        if still:
            cast(Any, hosts[2]._common).tell = lambda begun: None
        strike(any_fabric, signal.SIGKILL)
        hosts[0]._found = 1  # As somebody finds who waits for a message.
        wait_until(lambda: all(host.failures for host in hosts), "the failure")
        if still:
            wait_until(lambda: all(host._next is not None for host in hosts), "that no host begins messages")
            with ThreadPoolExecutor(1) as pool:
                blocked = pool.submit(hosts[0].receive, 1, torch.empty(10))
                hosts[0].close()
                with pytest.raises(Cancelled):
                    blocked.result(LONG_S)
        began = time.monotonic()
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda host: host.close(), hosts))
        assert time.monotonic() - began < 10
        assert not [each["name"] for each in any_fabric.status()["jobs"] if each["name"].startswith(job)]
    wait_until(lambda: threading.active_count() <= before, "the end of all threads")
