"""Run by test_differing.py: the ranks sum different tensors; each writes what it was told to FOLDER/rankN.json.

Usage: differing_ranks.py FOLDER length|dtype|average
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.errors import HostlibError

dist.init_process_group("netfold", timeout=timedelta(seconds=20))
rank = dist.get_rank()
AVG, SUM = dist.ReduceOp.AVG, dist.ReduceOp.SUM
last = torch.ones(3)
dist.all_reduce(last)
assert last.tolist() == [2.0] * 3
what = sys.argv[2]
tensor = torch.ones(5000 + 300 * rank * (what == "length"))
if what == "dtype" and rank == 1:
    tensor = tensor.to(torch.int32)
seen = []
for _ in range(2):
    try:
        dist.all_reduce(tensor, op=AVG if what == "average" and rank == 0 else SUM)
        seen.append("no error")
    except dist.DistBackendError as error:
        assert isinstance(error, RuntimeError) and isinstance(error, HostlibError)
        seen.append(str(error))
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps([seen, float(tensor[0])]))
