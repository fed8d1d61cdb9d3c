"""One rank of `hostlib bench --probe`: `python -m hostlib.bench.probe_rank`, started by hostlib/launch/launcher.py."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.bench.probe import ProbeOptions
from hostlib.collectives.bootstrap import join_group
from hostlib.system.pair_links import PairLink
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext

SMALL, LARGE = 1, 1 << 20  # values of 4 bytes
SMALL_ROUNDS, LARGE_ROUNDS, WARM_UP = 200, 16, 2
TAG = 1


def measure(options: ProbeOptions, here: LaunchEnvironment, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Measure each pair in turn; {"links": [...]}, the fields of hostlib.system.pair_links.PairLink.

    Raises:
        HostlibError: a rank is missing.
    """
    torch.set_num_threads(1)
    links = []
    with join_group(here, "probe", options.deadline_s) as (context, _):
        for first, second in combinations(range(context.world_size), 2):
            dist.barrier()
            found = [_link(context, first, second)] if context.rank in (first, second) else [None]
            dist.broadcast_object_list(found, first)
            links.append(found[0])
    return {"links": [asdict(link) for link in links if link is not None]}


def _link(context: RankContext, first: int, second: int) -> PairLink:
    values = torch.zeros(LARGE)
    small = _one_way_s(context, first, second, torch.zeros(SMALL), SMALL_ROUNDS)
    large = _one_way_s(context, first, second, values, LARGE_ROUNDS)
    return PairLink(first, second, small * 1e6, bandwidth_gbit_s(values.nbytes, small, large))


def bandwidth_gbit_s(nbytes: int, small_s: float, large_s: float) -> float:
    """A link's, from the one-way times of a small message and of one of so many bytes.

    Where the latency is most of the large message's time, their difference is noise: then it is not taken off, and the
    bandwidth is at least the one returned.
    """
    taken = large_s - small_s if small_s < large_s / 2 else large_s
    return nbytes * 8 / taken / 1e9


def _one_way_s(context: RankContext, first: int, second: int, values: Tensor, rounds: int) -> float:
    """Half the shortest round trip of a message between two ranks: the others also waited for a core."""
    transport = context.transport
    taken = []
    for _ in range(WARM_UP + rounds):
        begin = time.perf_counter()
        if context.rank == first:
            transport.send(values, second, TAG).wait()
            transport.receive(values, second, TAG).wait()
        else:
            transport.receive(values, first, TAG).wait()
            transport.send(values, first, TAG).wait()
        taken.append(time.perf_counter() - begin)
    return min(taken[WARM_UP:]) / 2


def main() -> None:
    """Run this process's part."""
    from hostlib.launch.rank_main import run_part

    run_part("hostlib bench --probe", lambda text, here, tell: measure(ProbeOptions(**json.loads(text)), here, tell))


if __name__ == "__main__":
    main()
