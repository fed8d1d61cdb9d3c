"""Run by test_host_levels.py: four ranks that count as those of two hosts. Each writes FOLDER/rankN.json.

Usage: host_level_ranks.py FOLDER CONTROLLER

They sum whatever the environment says, and stop where it says that a switch or a rank is killed:
NETFOLD_TEST_KILLS=switch: rank 0 writes FOLDER/ready and all wait for FOLDER/killed; =rank: rank 3 kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import torch
import torch.distributed as dist

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.collectives import host_memory
from hostlib.transport.refusals import quoted

FOLDER, CONTROLLER = Path(sys.argv[1]), sys.argv[2]
SIZES = (1, 1000, 3_000_000)
kills = os.environ.get("NETFOLD_TEST_KILLS", "")
dist.init_process_group("netfold")
rank = dist.get_rank()
host_memory._host = lambda: rank // 2
seen: dict[str, object] = {}


def drawn(of: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([of, size]).integers(-1000, 1000, size).astype(np.float32))


def sums() -> list[bool]:
    """Of whole numbers, so exactly whatever the order."""
    right = []
    for size in SIZES:
        tensor = drawn(rank, size)
        dist.all_reduce(tensor)
        right.append(bool(torch.equal(tensor, torch.stack([drawn(each, size) for each in range(4)]).sum(0))))
    return right


seen["sums"] = sums()
seen["jobs"] = httpx.get(f"{CONTROLLER}/v1/status").json()["jobs"] if rank == 0 else None
fractions = torch.rand(5000, generator=torch.Generator().manual_seed(rank))
dist.all_reduce(fractions, op=dist.ReduceOp.AVG)
seen["bits"] = fractions.view(torch.int32).tolist()
try:
    dist.all_reduce(torch.full((100,), 2**30, dtype=torch.int32) * (rank % 2))
    seen["overflow"] = "summed"
except (OverflowError, RuntimeError) as refused:
    seen["overflow"] = str(refused)
if kills == "switch":
    dist.barrier()
    if rank == 0:
        (FOLDER / "ready").touch()
    while not (FOLDER / "killed").exists():
        time.sleep(0.05)
elif kills == "rank" and rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    seen["again"] = sums()
except RuntimeError as error:
    seen["again"] = str(quoted(str(error)) or error)
(FOLDER / f"rank{rank}.json").write_text(json.dumps(seen))
dist.destroy_process_group()
