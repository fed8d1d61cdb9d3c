"""Run by test_session.py with torchrun's environment: each rank writes what it saw to FOLDER/rankN.json.

Usage: session_ranks.py FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import netfold
from hostlib.datasets.batches import batches
from hostlib.datasets.dataset import parse_dataset
from hostlib.datasets.pairing import load_data, load_fitting
from hostlib.train.loop import MOMENTUM, _be_deterministic, _digest
from hostlib.train.loss import loss_of
from hostlib.train.options import TrainOptions

OPTIONS = TrainOptions(mechanism="ring", world_size=2, steps=3)

seen: dict[str, object] = {}
with netfold.session("ring", deadline_s=20) as session:
    rank, world_size = session.rank, session.world_size
    total = torch.arange(1000).remainder(7).float().view(10, 100) * (rank + 1)
    work = session.all_reduce(total)
    whole = torch.full((3,), rank + 1, dtype=torch.int32)
    other = session.all_reduce(whole, op="sum")
    work.wait()
    other.wait()
    seen["sum"], seen["int32"] = total.flatten().tolist(), whole.tolist()
    average = torch.full((5,), float(rank))
    seen["result"] = session.all_reduce(average, op="avg").result()[0].tolist()
    for name, call in (
        ("op", lambda: session.all_reduce(average, op="max")),
        ("float64", lambda: session.all_reduce(torch.ones(2, dtype=torch.float64)).wait()),
        ("sparse", lambda: session.all_reduce(torch.eye(2).to_sparse())),
        ("negative", lambda: session.all_reduce(torch.ones(2, dtype=torch.complex64).conj().imag)),
        ("overlap", lambda: session.all_reduce(torch.ones(1).expand(8))),
        ("list", lambda: session.all_reduce([1, 2])),  # type: ignore[arg-type]
    ):
        try:
            call()
        except netfold.HostlibError as error:
            seen[name] = str(error)
    sparse = DistributedDataParallel(torch.nn.Embedding(4, 2, sparse=True))
    sparse.register_comm_hook(*session.ddp_hook())
    try:
        sparse(torch.tensor([1])).sum().backward()
    except netfold.HostlibError as error:
        seen["sparse gradients"] = str(error)
    after = torch.ones(2)
    session.all_reduce(after).wait()
    seen["after refusals"] = after.tolist()
    seen["report of sums"] = asdict(session.report())
seen["group is gone"] = not dist.is_initialized()

# Another one, which trains as `hostlib train` does.
_be_deterministic(OPTIONS.seed)
data = parse_dataset(OPTIONS.data)
model = load_fitting(OPTIONS.model, data)
split = load_data(data, model, OPTIONS.seed)
with netfold.session("ring") as session:
    ddp = DistributedDataParallel(model, bucket_cap_mb=OPTIONS.bucket_mb)
    ddp.register_comm_hook(*session.ddp_hook())
    optimiser = torch.optim.SGD(model.parameters(), lr=OPTIONS.lr, momentum=MOMENTUM)
    order = batches(len(split.train_labels), OPTIONS.batch_size, rank, world_size, OPTIONS.seed, 0)
    for chosen, _ in zip(order, range(OPTIONS.steps or 0), strict=False):
        optimiser.zero_grad(set_to_none=False)
        loss_of(ddp(split.train_images[chosen]), split.train_labels[chosen]).backward()
        optimiser.step()
seen["weights_sha256"] = _digest(model)
seen["report of steps"] = asdict(session.report())

# What goes wrong in a block ends its session alone; and one within a group of the caller's own leaves that as it is.
try:
    with netfold.session("ring", deadline_s=20):
        raise ValueError("the script's own")
except ValueError as error:
    seen["error"] = str(error)
seen["group is gone after an error"] = not dist.is_initialized()
dist.init_process_group("gloo")
with netfold.session("ring", deadline_s=20) as session:
    third = torch.full((5,), rank + 1.0)
    session.all_reduce(third).wait()
dist.all_reduce(third)
seen["twice"] = third.tolist()
dist.destroy_process_group()
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
