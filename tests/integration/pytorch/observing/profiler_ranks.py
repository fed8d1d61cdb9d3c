"""Run by test_profiler.py: a DDP step and a gather under torch's profiler, with an execution trace.

Usage: profiler_ranks.py FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

import netfold

(folder,) = sys.argv[1:]
dist.init_process_group(netfold.register())
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
observer = ExecutionTraceObserver().register_callback(f"{folder}/execution{rank}.json")
cpu = [ProfilerActivity.CPU]
with profile(activities=cpu, record_shapes=True, execution_trace_observer=observer) as seen:
    model(torch.ones(1, 4)).sum().backward()
    dist.all_gather_into_tensor(torch.empty(6), torch.ones(3))
seen.export_chrome_trace(f"{folder}/chrome{rank}.json")
dist.destroy_process_group()
