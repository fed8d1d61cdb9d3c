"""Run by test_backend.py with NETFOLD_STRICT=1: what the mechanism does not sum is refused.

Usage: strict_ranks.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import hostlib.pytorch.backend  # noqa: F401  registers the backend

MAX = dist.ReduceOp.MAX


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except dist.DistBackendError as refused:
        return str(refused)
    return "no error"


dist.init_process_group("netfold")
alone = [dist.new_group([r], backend="netfold") for r in range(2)][dist.get_rank()]
seen = [
    refusal(lambda: dist.all_reduce(torch.ones(2), op=MAX)),
    refusal(lambda: dist.reduce_scatter_single(torch.ones(1), torch.ones(2), op=MAX)),
    refusal(lambda: dist.all_reduce(torch.eye(2).to_sparse())),
    refusal(lambda: dist.all_reduce(torch.ones(2), op=MAX, group=alone)),
    refusal(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), op=dist.ReduceOp.AVG)),
    refusal(lambda: dist.all_reduce(torch.ones(2, dtype=torch.float64))),
]
Path(sys.argv[1], f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
