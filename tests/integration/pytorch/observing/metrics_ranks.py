"""Run by test_rank_metrics.py: a group that has ended, and a session, and what Prometheus reads of them.

Usage: metrics_ranks.py FOLDER MECHANISM CONTROLLER
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path

import prometheus_client
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import netfold

folder, mechanism, controller = sys.argv[1:]
registry = prometheus_client.CollectorRegistry()
registry.register(netfold.prometheus_collector())
server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
dist.init_process_group(netfold.register())
rank = dist.get_rank()
for dtype in (torch.float32, torch.float64):
    dist.all_reduce(torch.ones(100, dtype=dtype))
dist.barrier()
dist.destroy_process_group()
with netfold.session(mechanism, controller=controller) as session:
    session.all_reduce(torch.ones(50)).wait()
    whole = torch.ones(200)
    session.reduce_scatter(torch.ones(100), whole).wait()
    session.all_gather(whole, torch.ones(100)).wait()
    session.broadcast(whole).wait()
    if mechanism == "ring":  # which does these, too
        session.reduce(torch.ones(10)).wait()
        session.all_to_all(torch.ones(20)).wait()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model.register_comm_hook(*session.ddp_hook())
    model(torch.ones(1, 4)).sum().backward()
with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
    text = answer.read().decode()
server.shutdown()
thread.join()
server.server_close()
Path(folder, f"rank{rank}.json").write_text(json.dumps([text, session.report().traffic]))
