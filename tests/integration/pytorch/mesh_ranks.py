"""Run by test_places.py on four ranks: groups of a 2 x 2 mesh, and when they take slots. Each writes FOLDER/rankN.json.

Usage: mesh_ranks.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import hostlib.pytorch.backend  # noqa: F401  registers the backend
from hostlib.errors import JoinError
from hostlib.system.http_client import get


def slots_used() -> int:
    dist.barrier()
    used = get(os.environ["NETFOLD_CONTROLLER"], "/slots")["used"]
    dist.barrier()
    return int(used)


def total(group: dist.ProcessGroup | None) -> object:
    """A sum of the ranks' numbers, or what refused it."""
    tensor = torch.full((20_000,), float(dist.get_rank()))
    try:
        dist.all_reduce(tensor, group=group)
    except dist.DistBackendError as error:
        assert isinstance(error, JoinError)
        return str(error)
    return sorted(set(tensor.tolist()))


dist.init_process_group("netfold")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
alone = [dist.new_group([r], backend="netfold") for r in range(4)][rank]
dist.all_reduce(torch.ones(3), group=alone)
used = [slots_used()]
sums = []
for group in (None, mesh.get_group("row"), mesh.get_group("column"), dist.new_group(backend="netfold")):
    sums.append(total(group))
    used.append(slots_used())
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps([sums, used]))
dist.destroy_process_group()
