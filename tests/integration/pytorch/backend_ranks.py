"""Run by test_backend.py under torchrun: each rank writes what it saw to FOLDER/rankN.json.

Usage: backend_ranks.py FOLDER [leave]; with `leave` it ends without destroy_process_group.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.errors import HostlibError

AVG, MAX = dist.ReduceOp.AVG, dist.ReduceOp.MAX


def refusal(call: Callable[[], object]) -> str:
    """What netfold says to a call that it refuses."""
    try:
        call()
    except HostlibError as refused:
        return str(refused)
    return "no error"


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def gradients(net: torch.nn.Module) -> list[list[float]]:
    """After a backward pass over data that differ from rank to rank."""
    net(torch.full((3, 4), 0.5 * (rank + 1))).square().sum().backward()
    with_grad = [p.grad for p in net.parameters() if p.grad is not None]
    return [
        g.full_tensor().flatten().tolist() if hasattr(g, "full_tensor") else g.flatten().tolist() for g in with_grad
    ]


dist.init_process_group("netfold")
rank, world_size = dist.get_rank(), dist.get_world_size()
seen: dict[str, object] = {"rank": rank}

for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
    tensor = torch.arange(1000).remainder(7).to(dtype) * (rank + 1)
    dist.all_reduce(tensor)
    seen[str(dtype)] = tensor.tolist()
average = torch.full((5,), float(rank))
work = dist.all_reduce(average, op=AVG, async_op=True)
assert work is not None
assert work.wait(timedelta(seconds=30)) and work.is_completed()
seen["average"] = average.tolist()
seen["future"] = work.get_future().value()[0].tolist()
empty, one, strided = torch.zeros(0), torch.full((1,), rank + 1.0), torch.ones(4, 6)[:, ::2] * (rank + 1)
for tensor in (empty, one, strided):
    dist.all_reduce(tensor)
seen["one"], seen["strided"] = one.tolist(), strided.tolist()
several = [torch.full((n,), float(rank)) for n in (3, 0, 2)]
with dist._coalescing_manager(async_ops=True) as works:
    for tensor in several:
        dist.all_reduce(tensor)
works.wait()
seen["coalesced"] = [tensor.tolist() for tensor in several]

share = torch.zeros(2, 1)
dist.reduce_scatter_single(share, torch.arange(2.0 * world_size) * (rank + 1))
seen["share"] = share.flatten().tolist()
dist.reduce_scatter_single(share, torch.arange(2.0 * world_size) * (rank + 1), op=AVG)
seen["share of the average"] = share.flatten().tolist()
uneven = torch.zeros(rank + 1)
dist.reduce_scatter(uneven, [torch.full((n + 1,), 10.0 * n + rank) for n in range(world_size)])
seen["uneven share"] = uneven.tolist()
shares = [torch.zeros(n) for n in (1, 0, 3)]
group = dist.group.WORLD
assert group is not None
group.reduce_scatter_single_coalesced(shares, [torch.ones(world_size * s.numel()) for s in shares]).wait()
seen["coalesced shares"] = [s.tolist() for s in shares]

# What the mechanism does not sum goes to Gloo.
by_gloo: dict[str, list[object]] = {}
for dtype in (torch.float64, torch.int64, torch.uint8, torch.int8, torch.bool):
    for name in ("SUM", "MAX", "MIN", "PRODUCT"):
        tensor = torch.arange(1, 9).reshape(4, 2)[:, 0].add(rank).to(dtype)  # not contiguous
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
        by_gloo[f"{dtype} {name}"] = tensor.tolist()
for name in ("MAX", "MIN", "PRODUCT"):
    tensor = torch.arange(1.0, 4.0) + rank
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
    by_gloo[f"float32 {name}"] = tensor.tolist()
bits = torch.tensor([5 + rank])
dist.all_reduce(bits, op=dist.ReduceOp.BAND)
by_gloo["BAND"] = bits.tolist()
share = torch.zeros(1, 1, dtype=torch.int64)
dist.reduce_scatter_single(share, torch.arange(2) + rank, op=MAX)
by_gloo["share of MAX"] = share.flatten().tolist()
sparse = (torch.eye(2) * (rank + 1)).to_sparse()
dist.all_reduce(sparse)
by_gloo["sparse"] = sparse.to_dense().tolist()
exact = torch.tensor([2.0**-40 + rank], dtype=torch.float64)
dist.all_reduce(exact, op=AVG)
by_gloo["AVG"] = exact.tolist()
seen["by gloo"] = by_gloo
for dtype in (torch.int32, torch.int64):
    whole = torch.tensor([3, -3, 4], dtype=dtype) * rank
    dist.all_reduce(whole, op=AVG)
    by_gloo[f"{dtype} AVG"] = whole.tolist()

seen["odd"] = refusal(lambda: dist.reduce_scatter_single(torch.ones(1), torch.ones(2 * world_size + 1)))
seen["small"] = refusal(lambda: dist.reduce_scatter_single(torch.ones(1), torch.ones(2 * world_size)))
seen["expanded"] = refusal(lambda: dist.all_reduce(torch.ones(1, dtype=torch.float64).expand(3)))
seen["elsewhere"] = refusal(lambda: dist.all_reduce(torch.ones(2, device="meta")))

gathered: list[object] = [None] * world_size
dist.all_gather_object(gathered, rank)
seen["gathered"] = gathered
sent = torch.full((3,), 5.0) if rank == 0 else torch.zeros(3)
dist.broadcast(sent, 0)
seen["broadcast"] = sent.tolist()
highest = torch.tensor([float(rank)])
dist.reduce(highest, 0, op=MAX)
seen["reduced by gloo"] = highest.tolist()
dist.barrier()

# Groups of their own: one of all ranks in reverse, and each rank alone.
reverse = dist.new_group(list(reversed(range(world_size))), backend="netfold")
alone = [dist.new_group([r], backend="netfold") for r in range(world_size)][rank]
first, second, third = (torch.full((4,), rank + 1.0) for _ in range(3))
pending = [dist.all_reduce(first, group=reverse, async_op=True), dist.all_reduce(second, async_op=True)]
dist.all_reduce(third, group=alone)
for work in pending:
    assert work is not None
    work.wait()
seen["groups"] = [t.tolist() for t in (first, second, third)]
dist.destroy_process_group(reverse)
dist.all_reduce(second)
seen["after a group's end"] = second.tolist()

seen["ddp"] = gradients(DistributedDataParallel(model()))
sharded = model()
for layer in sharded:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer)
seen["fsdp2"] = gradients(fully_shard(sharded))
flat = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=False)
seen["fsdp1"] = gradients(flat)[0]
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
if "leave" not in sys.argv:
    dist.destroy_process_group()
