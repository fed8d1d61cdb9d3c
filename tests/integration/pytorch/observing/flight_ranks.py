"""Run by test_flight_recorder.py: each rank leaves its flight record in FOLDER.

Usage: flight_ranks.py FOLDER missing|differs|whole
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import netfold

folder, what = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group(netfold.register(), timeout=timedelta(seconds=4 if what == "missing" else 30))
rank = dist.get_rank()
dist.all_reduce(torch.ones(8))
file = folder / f"record{rank}"


def fails() -> bool:
    try:
        dist.all_reduce(torch.ones(6 + rank))
    except dist.DistBackendError:
        return True
    return False


if what in ("missing", "differs"):
    if what == "differs" or rank == 0:
        assert fails()
    # The other rank's, too, which may be in no operation.
    give_up = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < give_up
        time.sleep(0.1)
else:
    ones = [torch.ones(4) for _ in range(2)]
    dist.all_reduce(torch.ones(3, dtype=torch.float64), op=dist.ReduceOp.MAX)
    dist.broadcast(torch.ones(3), 0)
    dist.all_gather(ones, torch.ones(4))
    dist.all_gather_single(torch.ones(8), torch.ones(4))
    dist.reduce_scatter_single(torch.ones(4), torch.ones(8))
    dist.reduce_scatter(torch.ones(rank + 1), [torch.ones(1), torch.ones(2)])
    dist.reduce(torch.ones(5), 0)
    dist.gather(torch.ones(4), ones if rank == 0 else None, 0)
    dist.scatter(torch.ones(4), ones if rank == 0 else None, 0)
    dist.all_to_all_single(torch.ones(2 + rank), torch.ones(2 + rank), [1, 1 + rank], [1, 1 + rank])
    dist.all_to_all(ones, [torch.ones(4), torch.ones(4)])
    dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(2), 0)
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in ones:
            dist.all_reduce(tensor)
    works.wait()
    if rank == 0:  # an argument that is refused, on one rank alone
        with suppress(netfold.HostlibError):
            dist.reduce_scatter_single(torch.ones(1), torch.ones(3))
    other = dist.new_group([0, 1], backend="netfold", group_desc="another")
    dist.all_reduce(torch.ones(8), group=other)
    dist.all_reduce(torch.ones(8), async_op=True).get_future().then(
        lambda _: dist.all_reduce(torch.ones(2), group=other)
    ).wait()
    dist.barrier()
    time.sleep(0.5)  # so that all are seen to be complete
    assert netfold.write_flight_record() == file
    dist.destroy_process_group()
