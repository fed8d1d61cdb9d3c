"""Streams of messages through the embedded switch: every host gets every source's bytes, however bad the links are."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import JoinError, RunError
from hostlib.fabric.multicast import Streams, SwitchMulticast
from hostlib.protocol.slots import POOLS_OF_CHUNKS
from hostlib.transport.failure_detector import FailureDetector, Heartbeat
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from hostlib.transport.transport import settle
from tests.conftest import Fabric, running_fabric

WORKERS = 3
PATIENCE_S = 1.0
PACKET_BYTES = 1024  # of values
FAULTS = ("--loss", "0.03", "--duplicate", "0.03", "--reorder", "0.03", "--seed", "5")
SIZES = (0, 1, 3, PACKET_BYTES, 0, PACKET_BYTES + 1, 70 * PACKET_BYTES + 5, 300_000, 17, 16, 15, 64 * PACKET_BYTES)
STREAMS = {"of a server": Streams.of_server(WORKERS, 2), "of workers": Streams.of_workers(WORKERS)}


class Board:
    """Everybody's signs of life, on which all are alive and well."""

    def __init__(self, hosts: int) -> None:
        self.signs = [Heartbeat() for _ in range(hosts)]


@dataclass
class Signs:
    """One host's."""

    board: Board
    host: int

    def publish(self, **fields: int) -> None:
        self.board.signs[self.host] = replace(self.board.signs[self.host], **fields)

    def heartbeats(self) -> list[Heartbeat]:
        return list(self.board.signs)

    def exchange(self) -> None: ...

    def silent(self) -> list[int]:
        return []

    def explain(self, waited_s: float, otherwise: Any) -> Exception:
        return cast(Exception, otherwise() if callable(otherwise) else otherwise)


@pytest.fixture(
    scope="module", params=[(), FAULTS, ("--racks", "2", "--ports", "2")], ids=["good links", "bad links", "a tree"]
)
def fabric(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with running_fabric(tmp_path_factory.mktemp("fabric") / "state", *request.param) as started:
        yield started


@contextmanager
def hosts_of(fabric: Fabric, job: str, streams: Streams, deadline_s: float = 20.0) -> Iterator[list[SwitchMulticast]]:
    """All of a job's hosts: workers, then the server if there is one."""
    count = WORKERS + (streams.policy == "chunk")

    board, store = Board(count), dist.HashStore()

    def join(number: int) -> SwitchMulticast:
        gloo = dist.ProcessGroupGloo(store, number, count, timedelta(seconds=deadline_s))
        signs = cast(FailureDetector, Signs(board, number))
        hosts = GlooTransport(gloo)
        group = RankContext(
            number, WORKERS, gloo, signs, deadline_s, lambda: None, lambda: None, hosts, patience_s=PATIENCE_S
        )
        return SwitchMulticast(group, fabric.http, job, "127.0.0.1", streams)

    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        joined = list(pool.map(join, range(count)))
        yield [stack.enter_context(closing(host)) for host in joined]


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
def test_every_host_has_every_sources_bytes(kind: str, slots: int | None, fabric: Fabric) -> None:
    streams = STREAMS[kind]
    if slots is not None:
        streams = replace(streams, pool=slots * len(streams.sources) // POOLS_OF_CHUNKS)
        assert streams.slots == slots
    # Few slots are many round trips, and on bad links each of them may take a timeout.
    sizes = SIZES if slots is None else SIZES[:6]
    before = fabric.status()
    with hosts_of(fabric, f"{kind}-{slots}", streams) as hosts, ThreadPoolExecutor(len(hosts)) as pool:
        mismatches = list(pool.map(lambda number: played(hosts[number], number, streams, sizes), range(len(hosts))))
        stats = [host.stats() for host in hosts]
    assert mismatches == [0] * len(hosts)
    chunks = sum(-(-size // PACKET_BYTES) for size in sizes)
    # Once, whoever it is for, and however often it came.
    for switch, earlier in zip(fabric.status()["switches"], before["switches"], strict=True):
        assert switch["events"]["chunk"] - earlier["events"]["chunk"] == len(streams.sources) * chunks
    for number, counted in enumerate(stats):
        mine = sum(source == number for source in streams.sources)
        others = len(streams.sources) - mine if number < WORKERS else 0
        assert counted["chunks"] == (mine + others) * chunks
        # One NACK for half a window; what is more is for what was lost, or late.
        nacks = others * (2 * chunks // streams.slots + 1)
        assert counted["packets_sent"] <= mine * chunks + nacks + counted["retransmits"] * streams.slots


def test_a_host_that_never_sends_is_named(fabric: Fabric) -> None:
    with hosts_of(fabric, "silent", Streams.of_server(WORKERS, 1), deadline_s=3.0) as hosts:
        waiting = hosts[1].receive(0, torch.empty(10))
        with pytest.raises(RunError, match=r"^server 0 is alive but sent nothing through the switch for 3 s"):
            waiting.wait()
        assert hosts[1].failures == []


def test_streams_of_workers_need_two_of_them(fabric: Fabric) -> None:
    signs = cast(FailureDetector, Signs(Board(1), 0))
    group = RankContext(0, 1, None, signs, 5.0, lambda: None, lambda: None, cast(Any, None))
    with pytest.raises(JoinError, match=r"world size 1 is not in 2..32, the ranks of policy peers"):
        SwitchMulticast(group, fabric.http, "alone", "127.0.0.1", Streams.of_workers(1))


@pytest.mark.parametrize("fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize(("kind", "how"), [("of a server", signal.SIGSTOP), ("of workers", signal.SIGKILL)])
def test_the_bytes_are_the_same_when_the_switch_fails(kind: str, how: signal.Signals, fabric: Fabric) -> None:
    """The last of a fabric: its controller starts the switch again, but not in no time."""
    streams, sizes = STREAMS[kind], SIZES * 4
    state = json.loads((fabric.state_dir / "controller.json").read_text())
    switch = next(iter(state["processes"].values()))
    with hosts_of(fabric, f"{kind}-{how.name}", streams) as hosts, ThreadPoolExecutor(len(hosts)) as pool:
        playing = [pool.submit(played, hosts[n], n, streams, sizes, 0.02) for n in range(len(hosts))]
        time.sleep(0.3)
        os.kill(switch["pid"], how)
        assert [each.result() for each in playing] == [0] * len(hosts)
        failures = [host.failures for host in hosts]
    assert [len(each) for each in failures] == [1] * len(hosts)
    assert all(failure["by_hosts"] > 0 and failure["lost_ms"] < 10_000 for (failure,) in failures)
    give_up = time.monotonic() + 30
    while not fabric.status()["switches"][0]["up"] and time.monotonic() < give_up:
        time.sleep(0.1)
