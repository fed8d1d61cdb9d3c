"""Run by test_callbacks.py: callbacks that begin collectives, and wait for them. Each rank writes FOLDER/rankN.json.

Usage: callback_ranks.py FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import hostlib.pytorch.backend  # noqa: F401  registers the backend

dist.init_process_group("netfold")
rank = dist.get_rank()
seen: dict[str, object] = {}


def sum_of(value: float) -> Any:
    """The future of a sum of equal values."""
    work = dist.all_reduce(torch.full((100,), value), async_op=True)
    assert work is not None
    return work.get_future()


def first_of(future: Any) -> float:
    return float(future.value()[0][0])


# Every callback of a chain begins a sum and waits for it; so do those of other chains at the same time.
order: list[str] = []


def chained(number: int, depth: int) -> Any:
    def after(future: Any) -> float:
        value = first_of(future)
        order.append(f"{number}.{depth} begins")
        if depth > 0:
            value += chained(number, depth - 1).wait()
        order.append(f"{number}.{depth} ends")
        return value

    return sum_of(10.0 * number + rank).then(after)


chains = []
for number in range(5):
    # The ranks' scripts are not equally fast: how many callbacks have begun sums between two of the script's differs.
    time.sleep(0.05 * (rank == number % 2))
    chains.append(chained(number, 3))
seen["chains"] = [future.wait() for future in chains]
seen["order"] = order

# A callback that waits in each of the ways there are.


def waits(future: Any) -> list[float]:
    work = dist.all_reduce(first := torch.ones(3), async_op=True)
    assert work is not None
    work.wait()
    dist.all_reduce(second := torch.ones(3) * 2)
    both = torch.futures.wait_all([sum_of(3.0), sum_of(4.0)])
    collected = torch.futures.collect_all([sum_of(5.0), sum_of(6.0)]).wait()
    dist.barrier()
    return [first[0].item(), second[0].item(), *(float(each[0][0]) for each in both), *map(first_of, collected)]


seen["ways"] = sum_of(1.0).then(waits).wait()

# Some of the futures are complete by the time that these are attached, others are not.
completed: list[int] = []
futures = [sum_of(float(number)) for number in range(50)]
for number, future in enumerate(futures):
    future.add_done_callback(lambda _, number=number: completed.append(number))
torch.futures.wait_all(futures)
seen["completed"] = completed

# torch's own hook, over several buckets.
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
model = DistributedDataParallel(net, bucket_cap_mb=0.02)
state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
# Examples that differ: the hook divides by what is left of a gradient's second column, which may be nothing otherwise.
examples = torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))
for _ in range(6):
    optimiser.zero_grad()
    model(examples).square().mean().backward()
    optimiser.step()
flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
both = [torch.empty_like(flat) for _ in range(2)]
dist.all_gather(both, flat)
seen["weights"] = [bool(torch.equal(*both)), bool(flat.isfinite().all()), state.compression_stats()[0] > 2]

# The other rank does not begin what this callback waits for.
begun = time.monotonic()
if rank == 0:
    try:
        sum_of(1.0).then(lambda _: sum_of(1.0).wait()).wait()
        seen["missing"] = "no error"
    except RuntimeError as error:
        seen["missing"] = str(error)
    seen["waited"] = time.monotonic() - begun
else:
    sum_of(1.0).wait()
    while not Path(sys.argv[1], "rank0.json").exists():
        time.sleep(0.1)
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
