"""Sums on two levels: ranks are threads here, which count as those of several hosts, with real Gloo and real memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.collectives import host_levels, host_memory
from hostlib.collectives.collective import Collective
from hostlib.collectives.create import create_collective
from hostlib.collectives.host_levels import HostLevelsCollective
from hostlib.collectives.scheduled_collective import ScheduledCollective
from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.errors import RunError
from hostlib.mechanisms.mechanism import find
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from tests.integration.collectives.thread_ranks import PART_BYTES, Signs, T, drawn, on_threads

Play = Callable[[HostLevelsCollective, int], T]
PIECE_BYTES = 256  # that hosts sum at a time
SIZES = (0, 1, 7, 16, 17, 64, 65, 1000)
DEADLINE_S = 20.0
_here = threading.local()


def on_hosts(
    hosts: Sequence[int], play: Play[T], mechanism: str = "ring:same_host=shm", in_script: bool = False
) -> list[T]:
    """What each rank's part comes to; `hosts`: of each rank."""
    store = dist.HashStore()

    def context_of(rank: int, ranks: Sequence[int], key: str) -> RankContext:
        gloo = dist.ProcessGroupGloo(
            dist.PrefixStore(key, store), ranks.index(rank), len(ranks), timedelta(seconds=DEADLINE_S)
        )
        return RankContext(
            ranks.index(rank),
            len(ranks),
            gloo,
            Signs(),
            DEADLINE_S,
            lambda: dist.ProcessGroupGloo(
                dist.PrefixStore(f"{key}-more", store), ranks.index(rank), len(ranks), timedelta(seconds=DEADLINE_S)
            ),
            lambda: None,
            GlooTransport(gloo),
            in_script=in_script,
        )

    def rank(number: int) -> T:
        _here.host = hosts[number]

        def among(ranks: Sequence[int]) -> tuple[RankContext, str] | None:
            return (context_of(number, ranks, "leaders"), "leaders") if number in ranks else None

        context = replace(context_of(number, range(len(hosts)), "all"), among=among)
        collective = create_collective(find(mechanism), context, "", "sums")
        try:
            return play(collective, number)  # type: ignore[arg-type]  of the hosts that have several ranks
        finally:
            collective.close()

    return on_threads(rank, len(hosts))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(host_levels, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(host_memory, "_host", lambda: _here.host)


def as_it_is_to_be(size: int, dtype: torch.dtype, hosts: Sequence[int], average: bool) -> Tensor:
    """Of two hosts, bit for bit: the sum of each in its ranks' order, then of both."""
    wide = torch.int32 if dtype == torch.int32 else torch.float32
    sums: dict[int, Tensor] = {}
    for rank, host in enumerate(hosts):
        mine = drawn(rank, size, dtype).to(wide)
        sums[host] = sums[host] + mine if host in sums else mine
    first, second = sums.values()
    total = first + second
    return (total / len(hosts) if average else total).to(dtype)


@pytest.mark.parametrize("hosts", [(0, 0, 1), (0, 1, 1, 0, 0), (7, 7, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_ranks_have_the_sum_of_the_hosts_sums(dtype: torch.dtype, hosts: Sequence[int]) -> None:
    average = dtype.is_floating_point

    def play(collective: HostLevelsCollective, rank: int) -> list[Tensor]:
        tensors = [drawn(rank, size, dtype) for size in SIZES]
        sums = [collective.allreduce(tensor, average) for tensor in tensors]
        assert all(each.wait() is tensor for each, tensor in zip(sums, tensors, strict=True))
        return tensors

    for tensors in on_hosts(hosts, play):
        for tensor, size in zip(tensors, SIZES, strict=True):
            assert torch.equal(tensor, as_it_is_to_be(size, dtype, hosts, average))


def test_a_special_number_of_the_sum_reaches_every_rank_as_it_is() -> None:
    def play(collective: HostLevelsCollective, rank: int) -> list[int]:
        tensor = torch.tensor([-0.0, float("inf") if rank == 2 else 1.0, float("nan") if rank == 1 else 0.0])
        return [int(each) for each in collective.allreduce(tensor, False).wait().view(torch.int32)]

    first, *others = on_hosts((0, 0, 1, 1), play)
    assert first[:2] == [-(2**31), 0x7F800000] and np.isnan(np.array(first[2], np.int32).view(np.float32))
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [((0, 0, 0), SharedMemoryCollective), ((0, 1, 2), ScheduledCollective), ((0, 1, 1), HostLevelsCollective)],
)
def test_only_levels_that_there_are_take_part(hosts: Sequence[int], kind: type[Collective]) -> None:
    def play(collective: HostLevelsCollective, rank: int) -> float:
        assert isinstance(collective, kind)
        return float(collective.allreduce(torch.ones(5), False).wait()[3])

    assert on_hosts(hosts, play) == [3.0] * 3


def test_one_rank_of_each_host_sends() -> None:
    def play(collective: HostLevelsCollective, rank: int) -> bool:
        collective.allreduce(torch.ones(100), False).wait()
        return collective._between is not None

    assert on_hosts((0, 0, 1, 1, 1), play) == [True, False, True, False, False]


def test_a_sum_that_hosts_refuse_is_refused_by_every_rank_and_the_next_is_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ring refuses no sum; a switch does, where int32 overflows."""
    summed = ScheduledCollective.allreduce

    def refuses(self: ScheduledCollective, tensor: Tensor, average: bool, future: object = None) -> object:
        if tensor.numel() == 3:
            future = torch.futures.Future()
            future.set_exception(OverflowError("int32 overflow: nothing was summed"))
            return future
        return summed(self, tensor, average)

    monkeypatch.setattr(ScheduledCollective, "allreduce", refuses)

    def play(collective: HostLevelsCollective, rank: int) -> float:
        with pytest.raises(Exception, match="int32 overflow: nothing was summed"):
            collective.allreduce(torch.ones(3), False).wait()
        return float(collective.allreduce(torch.ones(20), False).wait()[19])

    assert on_hosts((0, 0, 1, 1), play) == [4.0] * 4


def test_why_the_hosts_failed_is_said_by_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: ScheduledCollective, tensor: Tensor, average: bool, future: object = None) -> object:
        broken: torch.futures.Future[Tensor] = torch.futures.Future()
        broken.set_exception(RunError("the switch has gone for a walk"))
        return broken

    monkeypatch.setattr(ScheduledCollective, "allreduce", fails)

    def play(collective: HostLevelsCollective, rank: int) -> None:
        for _ in range(2):
            with pytest.raises(Exception, match="the switch has gone for a walk"):
                collective.allreduce(torch.ones(1000), False).wait()

    on_hosts((0, 0, 1, 1), play)


def test_a_leader_that_waits_for_other_hosts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the deadline within a host: it says that it will come."""

    def play(collective: HostLevelsCollective, rank: int) -> float:
        object.__setattr__(collective._context, "deadline_s", 0.6)
        if rank == 2:
            time.sleep(2.0)
        return float(collective.allreduce(torch.ones(100), False).wait()[0])

    assert on_hosts((0, 0, 1), play) == [3.0] * 3


def test_a_rank_that_ended_ends_its_hosts_others_at_once() -> None:
    def play(collective: HostLevelsCollective, rank: int) -> float:
        if rank in (1, 3):
            return 0.0
        began = time.monotonic()
        with pytest.raises(Exception, match=f"rank {rank + 1} has ended"):
            collective.allreduce(torch.ones(1000), False).wait()
        return time.monotonic() - began

    assert max(on_hosts((0, 0, 1, 1), play)) < 5


@pytest.mark.parametrize("differs", [1, 2, 3])
def test_ranks_with_different_tensors_all_say_so(differs: int) -> None:
    """Whether they are on the same host or not."""

    def play(collective: HostLevelsCollective, rank: int) -> None:
        with pytest.raises(Exception, match=r"sum different tensors|has ended|failed") as said:
            collective.allreduce(torch.ones(40 if rank == differs else 20), False).wait()
        says.append(str(said.value))

    says: list[str] = []
    on_hosts((0, 0, 1, 2), play, in_script=True)
    assert any("the ranks sum different tensors, of 20 and of 40 elements: nothing was summed" in each for each in says)


def test_tensors_follow_each_other_while_ranks_dawdle() -> None:
    sizes = [int(size) for size in np.random.default_rng(5).choice([0, 1, 16, 63, 64, 65, 129, 700], 60)]
    hosts = (0, 1, 0, 1, 1)

    def play(collective: HostLevelsCollective, rank: int) -> list[Tensor]:
        dawdling = np.random.default_rng(rank)
        tensors = [drawn(rank, size, torch.float32) for size in sizes]
        pending = []
        for tensor in tensors:
            time.sleep(float(dawdling.choice([0, 0, 0, 1e-4, 2e-3])))
            pending.append(collective.allreduce(tensor, average=True))
        for each in pending:
            each.wait()
        return tensors

    wanted = {size: as_it_is_to_be(size, torch.float32, hosts, True) for size in set(sizes)}
    for tensors in on_hosts(hosts, play):
        for tensor, size in zip(tensors, sizes, strict=True):
            assert torch.equal(tensor, wanted[size])
