"""Run by test_backend.py under torchrun: each rank writes what it saw to FOLDER/rankN.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import hostlib.backend  # noqa: F401  registers the backend


def refusal(call) -> str:
    try:
        call()
    except Exception as refused:
        return str(refused)
    return "no error"


dist.init_process_group("netfold")
rank, world_size = dist.get_rank(), dist.get_world_size()
seen: dict[str, object] = {"rank": rank}
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
    tensor = torch.arange(1000).remainder(7).to(dtype) * (rank + 1)
    dist.all_reduce(tensor)
    seen[str(dtype)] = tensor.tolist()
average = torch.full((5,), float(rank))
dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True).wait()
seen["average"] = average.tolist()
empty, strided = torch.zeros(0), torch.ones(4, 6)[:, ::2] * (rank + 1)
dist.all_reduce(empty)
dist.all_reduce(strided)
seen["strided"] = strided.tolist()
seen["float64"] = refusal(lambda: dist.all_reduce(torch.ones(2, dtype=torch.float64)))
seen["max"] = refusal(lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX))
gathered: list[object] = [None] * world_size
dist.all_gather_object(gathered, rank)
seen["gathered"] = gathered
sent = torch.full((3,), 5.0) if rank == 0 else torch.zeros(3)
dist.broadcast(sent, 0)
seen["broadcast"] = sent.tolist()
dist.barrier()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.full((3, 4), float(rank + 1))).sum().backward()
seen["gradient"] = model.module.weight.grad.tolist()
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
dist.barrier()
dist.destroy_process_group()
