"""Run by test_training.py: what torch's DDP does with a backend; each rank writes what it saw to FOLDER/rankN.json.

Usage: training_ranks.py FOLDER inductor|aot_eager|join|timeout
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.errors import HostlibError


class Model(torch.nn.Module):
    """A layer in a module that is not torch's own, which torch.compile would leave alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(self.layer(values)) + self.layer(values)


def trained(forward: torch.nn.Module, net: torch.nn.Module, steps: int) -> list[list[float]]:
    """The weights after some steps over data that differ from rank to rank and from step to step."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimiser.zero_grad()
        forward(torch.full((3, 4), 0.1 * (1 + rank + 2 * step))).square().sum().backward()
        optimiser.step()
    return [p.flatten().tolist() for p in net.parameters()]


def compiled(compiler: str) -> object:
    """A compiled DDP's weights, those of one that is not, and how many graphs the compiler was given."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counting = CompileCounterWithBackend(compiler)
    net, plain = DistributedDataParallel(Model()), DistributedDataParallel(Model())
    forward = torch.compile(net, backend=counting)
    seen = [trained(forward, net, 3), trained(plain, plain, 3), counting.frame_count]

    @torch.compile(backend=counting)
    def direct(tensor: torch.Tensor) -> torch.Tensor:
        """Operations in a compiled function, also those that torch has no functional form of."""
        doubled = tensor * 2
        dist.all_reduce(doubled)
        dist.broadcast(doubled, 0)
        whole = torch.zeros(6)
        dist.all_gather_single(whole, doubled + rank)
        dist.barrier()
        return whole + 1

    return [*seen, direct(torch.ones(3)).tolist()]


def joined() -> object:
    """The weights where rank 1 has two more steps than rank 0, as torch's Join lets it."""
    net = DistributedDataParallel(Model())
    with Join([net]):
        trained(net, net, 2 + 2 * rank)
    return [p.flatten().tolist() for p in net.parameters()]


def late() -> object:
    """Rank 1 does not come to the second sum: what rank 0 is told, and after how many seconds."""
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        dist.distributed_c10d._get_default_store().wait(["told"], timedelta(seconds=60))
        return None
    begun = time.monotonic()
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        assert isinstance(error, RuntimeError) and isinstance(error, HostlibError)
        told, after_s = str(error), time.monotonic() - begun
    dist.distributed_c10d._get_default_store().set("told", "")
    return [told, after_s]


what = sys.argv[2]
if what == "timeout":
    dist.init_process_group("netfold", timeout=timedelta(seconds=3))
else:
    dist.init_process_group("netfold")
rank = dist.get_rank()
seen = {"join": joined, "timeout": late}[what]() if what in ("join", "timeout") else compiled(what)
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
