"""CGDP with a model on a GPU: chunks go by side streams, and what comes back is what torch computes by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.mechanisms.mechanism import find
from hostlib.strategies.builtin.cgdp.cgdp_options import Options
from hostlib.strategies.builtin.cgdp.cgdp_trainer import HostAccumulating
from hostlib.strategies.trainer import TrainerContext
from hostlib.transport.rank_context import RankContext

pytestmark = pytest.mark.gpu

LAYERS, WIDTH, BATCH, STEPS = 6, 512, 64, 10
LR = 0.1


@pytest.fixture
def alone() -> Iterator[RankContext]:
    """A group of this process."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=20))
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("own", store), 0, 1, timedelta(seconds=20))
    yield RankContext(0, 1, gloo, cast(Any, None), 20.0, lambda: None, lambda: None, cast(Any, None))
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).cuda()


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(2)
    for _ in range(STEPS):
        images = torch.randn(BATCH, WIDTH, generator=drawn)
        yield images.cuda(), torch.randint(0, 10, (BATCH,), generator=drawn).cuda()


@pytest.mark.parametrize("options", [Options(chunk=1), Options(chunk=3), Options(step=2, range=1, interval=2)])
def test_weights_are_torchs_own(options: Options, alone: RankContext) -> None:
    plain, loss = network(), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(plain.parameters(), lr=LR)
    for inputs, labels in batches():
        optimiser.zero_grad()
        loss(plain(inputs), labels).backward()
        optimiser.step()
    sums = SharedMemoryCollective(alone, "sums")
    model, sgd = network(), partial(torch.optim.SGD, lr=LR)
    first = next(iter(batches()))[0]
    context = TrainerContext(alone, find("shm"), model, loss, sgd, sums, len(first), 1.0, lambda: first[:1])
    trainer = HostAccumulating(context, options)
    for inputs, labels in batches():
        trainer.step(inputs, labels)
    sums.close()
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs), name
