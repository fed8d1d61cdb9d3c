"""Sums in shared memory: ranks are threads here, with real Gloo groups and the real memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.bench.allreduce import BenchOptions, measurable
from hostlib.collectives import host_memory
from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.errors import HostlibError
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from tests.integration.collectives.thread_ranks import PART_BYTES, Signs, T, drawn, on_threads

RANKS = 3
SIZES = (0, 1, 2, 7, 16, 17, 1000)


def on_ranks(play: Callable[[SharedMemoryCollective, int], T], ranks: int = RANKS) -> list[T]:
    """What each rank's part comes to."""
    store = dist.HashStore()

    def rank(number: int) -> T:
        gloo = dist.ProcessGroupGloo(store, number, ranks, timedelta(seconds=20))
        collective = SharedMemoryCollective(
            RankContext(number, ranks, gloo, Signs(), 20.0, lambda: None, lambda: None, GlooTransport(gloo)), "sums"
        )
        try:
            return play(collective, number)
        finally:
            collective.close()

    return on_threads(rank, ranks)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "PART_BYTES", PART_BYTES)


def in_order(size: int, dtype: torch.dtype, ranks: int, average: bool) -> Tensor:
    """The sum as it is to be, bit for bit: rank after rank, in float32 or int32."""
    wide = torch.int32 if dtype == torch.int32 else torch.float32
    total = drawn(0, size, dtype).to(wide)
    for rank in range(1, ranks):
        total += drawn(rank, size, dtype).to(wide)
    return (total / ranks if average else total).to(dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_sums_are_those_of_the_ranks_in_order(dtype: torch.dtype, ranks: int) -> None:
    average = dtype.is_floating_point

    def play(collective: SharedMemoryCollective, rank: int) -> list[Tensor]:
        tensors = [drawn(rank, size, dtype) for size in SIZES]
        sums = [collective.allreduce(tensor, average) for tensor in tensors]
        assert all(each.wait() is tensor for each, tensor in zip(sums, tensors, strict=True))
        return tensors

    for tensors in on_ranks(play, ranks):
        for tensor, size in zip(tensors, SIZES, strict=True):
            assert torch.equal(tensor, in_order(size, dtype, ranks, average))


def test_what_is_not_contiguous_is_summed_in_place() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> Tensor:
        whole = drawn(rank, 1000, torch.float32).view(20, 50)
        collective.allreduce(whole.t()[10:], average=False).wait()
        return whole

    (first, *_), wanted = on_ranks(play), in_order(1000, torch.float32, RANKS, False).view(20, 50)
    assert torch.equal(first[:, 10:], wanted[:, 10:])
    assert torch.equal(first[:, :10], drawn(0, 1000, torch.float32).view(20, 50)[:, :10])


def test_how_long_both_ways_took_is_counted() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> tuple[int, int]:
        collective.allreduce(torch.ones(1000), average=False).wait()
        return collective.accumulation_ns, collective.broadcast_ns

    assert all(accumulation > 0 and broadcast > 0 for accumulation, broadcast in on_ranks(play))


def test_what_cannot_be_summed_is_refused_by_every_rank_and_the_next_is_summed() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> float:
        for tensor, average, says in (
            (torch.ones(3, dtype=torch.float64), False, "unknown dtype 'torch.float64'"),
            (torch.ones(3, dtype=torch.int32), True, "can be summed, not averaged"),
        ):
            with pytest.raises(HostlibError, match=says):
                collective.allreduce(tensor, average).wait()
        return float(collective.allreduce(torch.ones(1), average=False).wait())

    assert on_ranks(play) == [RANKS] * RANKS


def test_a_rank_that_ended_is_not_waited_for() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> float:
        if rank == RANKS - 1:
            return 0.0
        began = time.monotonic()
        with pytest.raises(HostlibError, match=f"rank {RANKS - 1} has ended"):
            collective.allreduce(torch.ones(1000), average=False).wait()
        return time.monotonic() - began

    assert max(on_ranks(play)) < 5, "and the deadline is 20 s"


def test_a_rank_that_does_not_come_is_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def play(collective: SharedMemoryCollective, rank: int) -> None:
        object.__setattr__(collective._context, "deadline_s", 0.5)
        if rank == 1:
            assert release.wait(20)
            return
        with pytest.raises(HostlibError, match=r"rank 1 has not come for 0\.5 s"):
            collective.allreduce(torch.ones(1000), average=False).wait()
        release.set()

    on_ranks(play, 2)


def test_tensors_of_every_number_of_parts_follow_each_other_while_ranks_dawdle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "PART_BYTES", 32 << 10)
    sizes = [int(size) for size in np.random.default_rng(5).choice([0, 1, 4096, 4097, 8192, 8193, 30000], 150)]

    def play(collective: SharedMemoryCollective, rank: int) -> list[Tensor]:
        dawdling = np.random.default_rng(rank)
        tensors = [drawn(rank, size, torch.float32) for size in sizes]
        for tensor in tensors:
            time.sleep(float(dawdling.choice([0, 0, 0, 1e-4, 2e-3])))
            collective.allreduce(tensor, average=True).wait()
        return tensors

    wanted = {size: in_order(size, torch.float32, RANKS, True) for size in set(sizes)}
    for tensors in on_ranks(play):
        for tensor, size in zip(tensors, sizes, strict=True):
            assert torch.equal(tensor, wanted[size])


@pytest.mark.parametrize(
    ("mine", "theirs", "average", "says"),
    [
        (torch.ones(0), torch.ones(1), False, "of 0 and of 1 elements"),
        (torch.ones(3), torch.ones(1000), False, "of 3 and of 1000 elements"),
        (torch.ones(20), torch.ones(20, dtype=torch.int32), False, "of torch.float32 and of torch.int32"),
        (torch.ones(20), torch.ones(20), True, "with SUM and with AVG"),
    ],
)
def test_ranks_with_different_tensors_all_say_so_and_sum_nothing(
    mine: Tensor, theirs: Tensor, average: bool, says: str
) -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> Tensor:
        tensor = (theirs if rank == 1 else mine).clone()
        with pytest.raises(HostlibError, match=says):
            collective.allreduce(tensor, average and rank == 1).wait()
        return tensor

    first, second, third = on_ranks(play)
    assert torch.equal(first, mine) and torch.equal(second, theirs) and torch.equal(third, mine)


def test_int32_wraps_as_torchs_does() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> int:
        return int(collective.allreduce(torch.full((20,), 2**30, dtype=torch.int32), average=False).wait()[7])

    assert on_ranks(play, 3) == [3 * 2**30 - 2**32] * 3


def test_the_memory_has_no_name_that_could_stay_behind() -> None:
    def play(collective: SharedMemoryCollective, rank: int) -> list[str]:
        collective.allreduce(torch.ones(4), average=False).wait()
        return [
            line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "netfold" in line
        ]

    mapped = {name.strip() for names in on_ranks(play) for name in names if "netfold-shm" in name}
    assert mapped == {"/memfd:netfold-shm (deleted)"}


def test_ranks_of_two_hosts_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = iter(range(RANKS))
    monkeypatch.setattr(host_memory, "_host", lambda: next(hosts) // 2)
    with pytest.raises(HostlibError) as refused:
        on_ranks(lambda collective, rank: None)
    assert "shm is for ranks of one host" in str(refused.value)
    assert "legal are" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_such_memory_every_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(host_memory, "_mapped", refuse)
    with pytest.raises(HostlibError, match=r"no shared memory here: rank \d cannot map it: Operation not permitted"):
        on_ranks(lambda collective, rank: None)


def test_bench_leaves_it_out_where_every_rank_is_a_host() -> None:
    assert "shm" in measurable()
    assert "shm" not in measurable("netns:4")
    with pytest.raises(HostlibError, match="shm is for ranks of one host, and with --on netns each has its own"):
        BenchOptions(("shm",), (1024,), hosts="netns:4")
