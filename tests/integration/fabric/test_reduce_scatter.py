"""Reduce-scatters through the embedded switch: every owner has its shard's sum, however bad the links are."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.errors import JoinError, RunError
from hostlib.fabric.reduce_scatter import SwitchReduceScatter
from hostlib.transport.failure_detector import FailureDetector
from hostlib.transport.gloo_transport import GlooTransport
from hostlib.transport.rank_context import RankContext
from tests.conftest import Fabric
from tests.integration.fabric.test_multicast import Board, Signs

WORLD_SIZE = 3
ELEMENTS = 256
TIMES = 40  # as long as a controller takes to bring a switch back
SHARDS = (1, 3, ELEMENTS, 7 * ELEMENTS + 5, 20_000, 17)


@contextmanager
def ranks_of(
    fabric: Fabric, job: str, world_size: int = WORLD_SIZE, deadline_s: float = 20.0, slots: int = 128
) -> Iterator[list[SwitchReduceScatter]]:
    board, store = Board(world_size), dist.HashStore()

    def join(rank: int) -> SwitchReduceScatter:
        def gloo(name: str) -> dist.ProcessGroupGloo:
            place = dist.PrefixStore(name, store)
            return dist.ProcessGroupGloo(place, rank, world_size, timedelta(seconds=deadline_s))

        signs = cast(FailureDetector, Signs(board, rank))
        hosts = gloo("hosts")
        group = RankContext(
            rank,
            world_size,
            hosts,
            signs,
            deadline_s,
            lambda: gloo("fallback"),
            lambda: None,
            GlooTransport(hosts),
            patience_s=1.0,
            slots=slots,
        )
        return SwitchReduceScatter(group, fabric.http, job, "127.0.0.1")

    with ExitStack() as stack, ThreadPoolExecutor(world_size) as pool:
        yield [stack.enter_context(closing(each)) for each in pool.map(join, range(world_size))]


def values(rank: int, number: int, size: int, dtype: torch.dtype) -> Tensor:
    """A rank's tensor number `number`: (WORLD_SIZE * size,)."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    if dtype == torch.int32:
        return torch.randint(-(2**28), 2**28, (WORLD_SIZE * size,), dtype=dtype, generator=generator)
    # Blocks of very different scales.
    scale = torch.exp2(torch.randint(-20, 20, (WORLD_SIZE * size,), generator=generator).float())
    return (torch.randn(WORLD_SIZE * size, generator=generator) * scale).to(dtype)


def played(
    each: SwitchReduceScatter, rank: int, dtype: torch.dtype, times: int = 1, pause_s: float = 0
) -> list[Tensor]:
    """This rank's shards of all sums."""
    shards = []
    for number, size in enumerate(SHARDS * times):
        tensor = values(rank, number, size, dtype)
        each.execute(tensor, average=dtype != torch.int32)
        shards.append(tensor.view(WORLD_SIZE, -1)[rank].clone())
        time.sleep(pause_s)
    each.settle()
    return shards


def all_played(ranks: list[SwitchReduceScatter], dtype: torch.dtype, times: int = 1) -> list[list[Tensor]]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: played(ranks[rank], rank, dtype, times), range(len(ranks))))


def by_hosts(fabric: Fabric, dtype: torch.dtype, times: int = 1) -> list[list[Tensor]]:
    """The same sums by hosts that have left the switch."""
    with ranks_of(fabric, f"hosts-{dtype}-{time.monotonic_ns()}") as ranks:
        for each in ranks:
            each._leave()
        return all_played(ranks, dtype, times)


def require_same(found: list[list[Tensor]], wanted: list[list[Tensor]]) -> None:
    for mine, its in zip(found, wanted, strict=True):
        for shard, other in zip(mine, its, strict=True):
            assert torch.equal(shard, other)


@pytest.mark.parametrize("slots", [3, 128], ids=["two slots for each", "as many as usual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_every_owner_has_its_sum_bit_for_bit(dtype: torch.dtype, slots: int, any_fabric: Fabric) -> None:
    with ranks_of(any_fabric, f"{dtype}-{slots}", slots=slots) as ranks:
        found = all_played(ranks, dtype)
        stats = [each.stats() for each in ranks]
        assert [each.failures for each in ranks] == [[]] * WORLD_SIZE
    for rank, shards in enumerate(found):
        for number, (shard, size) in enumerate(zip(shards, SHARDS, strict=True)):
            everybody = torch.stack([values(other, number, size, dtype).double() for other in range(WORLD_SIZE)])
            total = everybody.view(WORLD_SIZE, WORLD_SIZE, -1)[:, rank].sum(0)
            if dtype == torch.int32:
                assert torch.equal(shard, total.int())
                continue
            # The others' values have the scale of their largest in the block, or one that is up to 8 times as large.
            bound = everybody.abs().max() * 2.0**-23 + (2.0**-8 if dtype == torch.bfloat16 else 2.0**-22) * total.abs()
            assert bool(((shard.double() * WORLD_SIZE - total).abs() <= bound).all())
    if slots == 128:
        require_same(found, by_hosts(any_fabric, dtype))
    # Nobody sends its own shard, and nobody receives another's.
    chunks = sum(-(-size // ELEMENTS) for size in SHARDS)
    cut, name = ranks[0].session.place.tensor_cut, str(dtype).removeprefix("torch.")
    packets = (WORLD_SIZE - 1) * sum(replace(cut, lanes=1).positions(size, name) for size in SHARDS)
    for counted in stats:
        sent = counted["packets_sent"] - counted["retransmits"]
        assert packets <= sent <= 2 * packets + WORLD_SIZE * counted["retransmits"]  # and acknowledgements
        assert counted["chunks"] >= WORLD_SIZE * chunks


def test_special_values_reach_their_owner(any_fabric: Fabric) -> None:
    def summed(rank: int, each: SwitchReduceScatter) -> Tensor:
        tensor = torch.full((WORLD_SIZE, ELEMENTS + 2), float(rank))
        tensor[:, 0] = torch.nan if rank == 1 else 1.0
        tensor[:, ELEMENTS] = torch.inf if rank == 2 else 0.0
        each.execute(tensor.view(-1))
        return tensor[rank].clone()

    with ranks_of(any_fabric, "special") as ranks, ThreadPoolExecutor(WORLD_SIZE) as pool:
        shards = list(pool.map(summed, range(WORLD_SIZE), ranks))
    for shard in shards:
        assert bool(shard[0].isnan()) and not bool(shard[ELEMENTS].isfinite())


def test_what_might_overflow_is_refused_by_all_and_the_next_sum_is_right(any_fabric: Fabric) -> None:
    def summed(rank: int, each: SwitchReduceScatter) -> Tensor:
        large = torch.zeros(WORLD_SIZE * 9, dtype=torch.int32)
        large[0] = 2**30 if rank == 0 else 0  # of the owner alone: it sends that to nobody
        with pytest.raises(OverflowError, match="the sum of 3 int32 tensors"):
            each.execute(large)
        small = torch.full((WORLD_SIZE * 9,), rank, dtype=torch.int32)
        each.execute(small)
        each.settle()
        return small.view(WORLD_SIZE, -1)[rank]

    with ranks_of(any_fabric, "overflow") as ranks, ThreadPoolExecutor(WORLD_SIZE) as pool:
        for shard in pool.map(summed, range(WORLD_SIZE), ranks):
            assert shard.tolist() == [3] * 9


def test_ranks_that_sum_different_tensors_all_hear_of_it(any_fabric: Fabric) -> None:
    def summed(rank: int, each: SwitchReduceScatter) -> str:
        with pytest.raises(RunError) as refused:
            each.execute(torch.zeros(WORLD_SIZE * (8 if rank == 1 else 5)))
        return str(refused.value)

    with ranks_of(any_fabric, "differ") as ranks, ThreadPoolExecutor(WORLD_SIZE) as pool:
        for line in pool.map(summed, range(WORLD_SIZE), ranks):
            assert line.startswith("the ranks sum tensors of different lengths or types (reduce-scatter 1)")


def test_a_rank_that_does_not_join_is_named(any_fabric: Fabric) -> None:
    def summed(rank: int, each: SwitchReduceScatter) -> str:
        if rank == 2:
            return ""
        with pytest.raises(RunError) as refused:
            each.execute(torch.ones(WORLD_SIZE * 5))
        return str(refused.value)

    with ranks_of(any_fabric, "late", deadline_s=2.0) as ranks, ThreadPoolExecutor(WORLD_SIZE) as pool:
        lines = list(pool.map(summed, range(WORLD_SIZE), ranks))
    assert all(line.startswith("rank 2 is alive but did not join reduce-scatter 1") for line in lines[:2])


def test_there_must_be_two_ranks(any_fabric: Fabric) -> None:
    with pytest.raises((JoinError, ValueError)), ranks_of(any_fabric, "alone", world_size=1):
        raise AssertionError("one rank has nobody to sum with")


@pytest.mark.parametrize("any_fabric", [()], indirect=True, ids=["good links"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_the_bits_are_the_same_when_the_switch_fails(how: signal.Signals, any_fabric: Fabric) -> None:
    """The last of a fabric: its controller starts the switch again, but not in no time."""
    wanted = by_hosts(any_fabric, torch.float32, times=TIMES)
    state = json.loads((any_fabric.state_dir / "controller.json").read_text())
    switch = next(iter(state["processes"].values()))
    with ranks_of(any_fabric, f"failing-{how.name}") as ranks, ThreadPoolExecutor(len(ranks)) as pool:
        playing = [pool.submit(played, each, rank, torch.float32, TIMES, 0.025) for rank, each in enumerate(ranks)]
        time.sleep(0.3)
        os.kill(switch["pid"], how)
        found = [each.result() for each in playing]
        failures = [each.failures for each in ranks]
    require_same(found, wanted)
    assert [len(each) for each in failures] == [1] * len(ranks)
    assert all(failure["by_hosts"] > 0 and failure["lost_ms"] < 10_000 for (failure,) in failures)
    assert all(failure["returned"] for (failure,) in failures) or how == signal.SIGSTOP
    give_up = time.monotonic() + 30
    while not any_fabric.status()["switches"][0]["up"] and time.monotonic() < give_up:
        time.sleep(0.1)
