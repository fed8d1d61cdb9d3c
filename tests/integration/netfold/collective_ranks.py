"""Run by test_session_collectives.py with torchrun's environment: all collectives but the all-reduce alone.

Usage: collective_ranks.py FOLDER CONTROLLER MECHANISM...

Each rank writes to FOLDER/rankN.json, by mechanism and collective, the number of elements that are not numpy's, over all
sizes and roots. Values are whole numbers, whose sums are exact in every dtype that is tried.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import netfold
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.schedules.contract import Collective

SHARDS = (0, 1, 7, 1000, 270_001)  # elements; the last in several segments
SUMMED = (torch.float32, torch.int32, torch.bfloat16)
MOVED = (torch.float32, torch.int64, torch.bool, torch.complex64)


def drawn(rank: int, elements: int, salt: int) -> np.ndarray:
    return np.random.default_rng([rank, elements, salt]).integers(-16, 16, elements)


def wrong(tensor: torch.Tensor, wanted: np.ndarray) -> int:
    return int((tensor != torch.from_numpy(wanted).to(tensor.dtype)).sum())


def able(mechanism: Mechanism, collective: Collective) -> bool:
    return collective in mechanism.collectives and mechanism.of(collective).runs_on_hosts


def measured(session: netfold.Session, mechanism: Mechanism) -> Counter[str]:
    """Wrong elements by collective."""
    n, rank, found = session.world_size, session.rank, Counter[str]()
    for size in SHARDS:
        everybody = [drawn(each, n * size, 0) for each in range(n)]
        total, mine = np.sum(everybody, axis=0), slice(rank * size, (rank + 1) * size)
        if able(mechanism, Collective.REDUCE_SCATTER):
            for dtype in SUMMED:
                whole, shard = torch.from_numpy(everybody[rank]).to(dtype), torch.empty(size, dtype=dtype)
                session.reduce_scatter(shard, whole).wait()
                found["reduce_scatter"] += wrong(shard, total[mine]) + wrong(whole, everybody[rank])
            average = torch.empty(size)
            session.reduce_scatter(average, torch.from_numpy(everybody[rank] * n).float(), op="avg").wait()
            found["reduce_scatter"] += wrong(average, total[mine])
        shards = [drawn(each, size, 1) for each in range(n)]
        if able(mechanism, Collective.ALL_GATHER):
            for dtype in MOVED:
                gathered = torch.empty(n * size, dtype=dtype)
                session.all_gather(gathered, torch.from_numpy(shards[rank]).to(dtype)).wait()
                wanted = torch.cat([torch.from_numpy(each) for each in shards]).to(dtype)
                found["all_gather"] += int((gathered != wanted).sum())
        if able(mechanism, Collective.BROADCAST):
            for root in range(n):
                spread = torch.from_numpy(shards[rank]).clone()
                session.broadcast(spread, root).wait()
                found["broadcast"] += wrong(spread, shards[root])
        if able(mechanism, Collective.REDUCE):
            for root in range(n):
                for dtype in SUMMED:
                    mine_of_all = torch.from_numpy(everybody[rank]).to(dtype)
                    session.reduce(mine_of_all, root).wait()
                    found["reduce"] += wrong(mine_of_all, total if rank == root else everybody[rank])
                average = torch.from_numpy(everybody[rank] * n).float()
                session.reduce(average, root, op="avg").wait()
                found["reduce"] += wrong(average, total if rank == root else everybody[rank] * n)
        if able(mechanism, Collective.ALL_TO_ALL):
            arriving = np.concatenate([each[mine] for each in everybody])
            for dtype in MOVED:
                exchanged = torch.from_numpy(everybody[rank]).to(dtype, copy=True)
                session.all_to_all(exchanged).wait()
                found["all_to_all"] += wrong(exchanged, arriving)
            # Values that are not one after the other in memory, and two at a time.
            spaced, plain = torch.zeros(n * size, 2), torch.from_numpy(everybody[rank]).float()
            spaced[:, 0] = plain
            works = [session.all_to_all(spaced[:, 0]), session.all_to_all(plain)]
            for work in works:
                work.wait()
            found["all_to_all"] += wrong(spaced[:, 0], arriving) + wrong(plain, arriving) + int(spaced[:, 1].sum())
        if able(mechanism, Collective.REDUCE_SCATTER) and able(mechanism, Collective.ALL_GATHER):
            # Both at a time, beside an all-reduce.
            gathered, shard, both = torch.empty(n * size), torch.empty(size), torch.from_numpy(everybody[rank]).float()
            works = [
                session.reduce_scatter(shard, torch.from_numpy(everybody[rank]).float()),
                session.all_gather(gathered, torch.from_numpy(shards[rank]).float()),
                session.all_reduce(both),
            ]
            for work in works:
                work.wait()
            found["together"] += (
                wrong(shard, total[mine]) + wrong(gathered, np.concatenate(shards)) + wrong(both, total)
            )
    return found


def refusals(session: netfold.Session) -> dict[str, str]:
    """What is refused before anything is sent."""
    n, lines = session.world_size, {}
    for name, call in (
        ("shards", lambda: session.all_gather(torch.empty(n + 1), torch.empty(1))),
        ("dtypes", lambda: session.reduce_scatter(torch.empty(1), torch.empty(n, dtype=torch.int32))),
        ("summed", lambda: session.reduce_scatter(torch.empty(1).double(), torch.empty(n).double())),
        ("root", lambda: session.broadcast(torch.empty(1), n)),
        ("list", lambda: session.broadcast([1.0])),  # type: ignore[arg-type]
        ("no rank", lambda: session.reduce(torch.empty(1), -1)),
        ("no number", lambda: session.reduce(torch.empty(1), "0")),  # type: ignore[arg-type]
        ("reduced", lambda: session.reduce(torch.empty(1).double())),
        ("operation", lambda: session.reduce(torch.empty(1), op="max")),  # type: ignore[arg-type]
        ("averaged", lambda: session.reduce(torch.empty(1, dtype=torch.int32), op="avg")),
        ("whole shards", lambda: session.all_to_all(torch.empty(n + 1))),
    ):
        try:
            call()
        except netfold.HostlibError as error:
            lines[name] = str(error)
    return lines


folder, controller, *names = sys.argv[1:]
seen: dict[str, object] = {}
for name in names:
    with netfold.session(name, controller=controller, deadline_s=60) as session:
        seen["refused"] = refusals(session)
        seen[name] = measured(session, find(name))
        rank = session.rank
seen["threads"] = [thread.name for thread in threading.enumerate()]  # that sessions have left
Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))
