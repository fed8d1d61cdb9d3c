"""Run under torchrun: what backend netfold makes of tensors on a device, beside the same on the host.

Usage: device_ranks.py FOLDER all | failover | missing [cuda]. Each rank writes what it saw to FOLDER/rankN.json.
Without `cuda` (tests/cuda/test_cuda.py) the device is tests/threaded_device.py's (test_device.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.errors import HostlibError
from hostlib.staging import device_reduction
from tests.threaded_device import install

AVG = dist.ReduceOp.AVG
LATE_CYCLES = 500_000_000  # a quarter of a second and more
FAILOVER_S = 30.0

folder, mode, real = Path(sys.argv[1]), sys.argv[2], "cuda" in sys.argv
patch = pytest.MonkeyPatch()
device = None if real else install(patch)
patch.setattr(device_reduction, "PIECE_BYTES", 64 << 10)
patch.setattr(device_reduction, "PIECES", 6)
dist.init_process_group("netfold")
rank, world_size = dist.get_rank(), dist.get_world_size()
where = torch.device("cuda", rank % torch.cuda.device_count()) if real else torch.device("cpu")
if real:
    torch.cuda.set_device(where)
seen: dict[str, Any] = {}


def bits(tensor: Tensor) -> Tensor:
    return tensor.cpu().reshape(-1).clone().view(torch.uint8)


def on_host(call: Callable[[], Any]) -> Any:
    """With tensors in the host's memory."""
    if device is None:
        return call()
    device.on = False
    try:
        return call()
    finally:
        device.on = True


def full(size: int, value: float) -> Tensor:
    """On the device."""
    return torch.full((size,), value, device=where)


def values(count: int, dtype: torch.dtype) -> Tensor:
    """Of this rank; every 100 of them of another magnitude, down to denormals and up to the largest."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype == torch.int32:
        return torch.randint(-(1 << 29), 1 << 29, (count,), dtype=dtype, generator=generator)
    drawn = torch.randn(count, generator=generator, dtype=torch.float64)
    scale = torch.randint(-150, 127, (-(-count // 100),), generator=generator).repeat_interleave(100)[:count]
    most = torch.finfo(dtype).max
    return (drawn * torch.pow(2.0, scale.double())).clamp(-most, most).to(dtype)


def same_as_on_the_host(tensor: Tensor, **options: Any) -> bool:
    """Sums a copy either way."""
    there, here = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=where), tensor.clone()
    there.copy_(tensor)
    dist.all_reduce(there, **options)
    on_host(lambda: dist.all_reduce(here, **options))
    return torch.equal(bits(there), bits(here))


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (HostlibError, OverflowError) as refused:
        return str(refused)
    return "no error"


def everything() -> None:
    same = seen["same"] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        for count in (0, 1, 5_000, 150_001):
            same[f"{dtype} {count}"] = same_as_on_the_host(values(count, dtype))
        if dtype != torch.int32:
            same[f"{dtype} average"] = same_as_on_the_host(values(5_001, dtype), op=AVG)
    special = values(60_000, torch.float32)
    special[100 * rank], special[40_000], special[50_000 + rank] = torch.nan, torch.inf, -torch.inf
    same["special"] = same_as_on_the_host(special)
    same["special average"] = same_as_on_the_host(special.half(), op=AVG)
    seen["launched"] = {} if device is None else device.launched()
    same["strided"] = same_as_on_the_host(values(6_000, torch.float32).view(60, 100)[:, ::3])

    # What the caller's stream has not computed yet; and behind it, in the order in which they were asked for, from the
    # host and from the device.
    late, other, third = full(3_000, 0.0), torch.full((2_000,), rank + 1.0), full(70_000, rank + 1.0)
    gate = threading.Event()
    if device is None:
        torch.cuda._sleep(LATE_CYCLES)
        late.fill_(rank + 1.0)
    else:
        device.compute.ask(lambda: (gate.wait(), late.fill_(rank + 1.0)))
    first = dist.all_reduce(late, async_op=True)
    second = on_host(lambda: dist.all_reduce(other, async_op=True))
    last = dist.all_reduce(third, op=AVG, async_op=True)
    seen["early"] = [work.is_completed() for work in (first, second, last)]
    gate.set()
    for work in (last, first, second):
        work.wait()
    seen["late"] = [float(t.min()) for t in (late, other, third)] + [float(t.max()) for t in (late, other, third)]

    seen["refused"] = refusal(lambda: dist.all_reduce(torch.full((9,), 1 << 30, dtype=torch.int32, device=where)))
    dist.all_reduce(double := torch.ones(2, dtype=torch.float64, device=where))  # by Gloo
    seen["dtype"] = double.tolist()
    several = [full(n, float(rank)) for n in (3, 0, 2)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in several:
            dist.all_reduce(tensor)
    works.wait()
    seen["coalesced"] = [tensor.tolist() for tensor in several]
    share, whole = torch.zeros(2, 1, device=where), torch.arange(2.0 * world_size, device=where) * (rank + 1)
    # Its name before torch 2.13, which CUDA builds of it may be.
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(share, whole, op=AVG)
    seen["share"] = share.flatten().tolist()
    os.environ["NETFOLD_LANES"] = "1"
    alone = [dist.new_group([r], backend="netfold") for r in range(world_size)][rank]
    one = full(5, rank + 1.0)
    dist.all_reduce(one, group=alone)
    seen["alone"] = one.tolist()

    # Gloo's own, by way of the host.
    passed, whole = full(3, rank + 1.0), full(3, 0.0)
    if rank == 0:
        dist.send(passed, 1)
        dist.recv(whole)
    else:
        dist.recv(whole, 0)
        dist.send(passed, 0)
    seen["passed"] = whole.tolist()
    for name, wrap in (("ddp", torch.nn.parallel.DistributedDataParallel), ("fsdp", fully_shard)):
        linear = torch.nn.Linear(4, 2).to(where)
        wrapped = wrap(linear)
        wrapped(torch.full((3, 4), rank + 1.0, device=where)).sum().backward()
        gradient = linear.weight.grad
        seen[name] = (gradient.full_tensor() if name == "fsdp" else gradient).flatten().tolist()


def failover() -> None:
    """The same sum again and again; test_device.py kills the switch meanwhile."""
    group = dist.group.WORLD
    assert group is not None
    mine = values(60_000, torch.float32)
    expected = mine.clone()
    on_host(lambda: dist.all_reduce(expected))
    (folder / f"begun{rank}").touch()
    seen["rounds"] = seen["mismatches"] = 0
    give_up = time.monotonic() + FAILOVER_S
    # Every rank ends after as many: rank 0 says when.
    more = torch.ones(1, dtype=torch.int32)
    while more.item():
        works, sums = [], [mine.to(where, copy=True) for _ in range(3)]
        for tensor in sums:
            works.append(dist.all_reduce(tensor, async_op=True))
        for work, tensor in zip(works, sums, strict=True):
            work.wait()
            seen["mismatches"] += not torch.equal(bits(tensor), bits(expected))
        seen["rounds"] += 1
        failures = group.failures
        finished = bool(failures) and failures[0]["by_hosts"] > 0 and failures[0]["returned"]
        more[0] = 0 if finished or time.monotonic() > give_up else 1
        dist.broadcast(more, 0)
    seen["failures"] = group.failures


def missing() -> None:
    dist.all_reduce(full(10, 1.0))
    if rank == 1:
        (folder / "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)  # test_device.py ends it.
    seen["missing"] = refusal(lambda: dist.all_reduce(full(10, 1.0)))


{"all": everything, "failover": failover, "missing": missing}[mode]()
partial = folder / f"rank{rank}.partial"
partial.write_text(json.dumps(seen))
partial.rename(folder / f"rank{rank}.json")
if mode != "missing":
    dist.destroy_process_group()
