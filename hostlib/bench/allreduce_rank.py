"""One rank of `hostlib bench`: `python -m hostlib.bench.allreduce_rank`, started by hostlib/launch/launcher.py."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hostlib.bench.allreduce import RankOptions
from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.collective import Collective
from hostlib.collectives.create import create_collective
from hostlib.collectives.serve import serve
from hostlib.collectives.vendor import GlooCollective
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.protocol import constants
from hostlib.protocol.block_float import error_bound
from hostlib.system.tcp_counters import tcp_retransmits
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int32")}
BLOCK = 1 << 16  # elements that are generated, or checked, at once
INTEGERS = 1 << 24  # magnitudes of int32 tensors: small enough for a sum over 32 ranks
TARGET_S = 0.25
MOST_ITERATIONS = 100

Report = Callable[[dict[str, Any]], None]


def measure(options: RankOptions, here: LaunchEnvironment, report: Report) -> dict[str, Any]:
    """Do all measurements; {"rows": [...]}, the fields of hostlib.bench.allreduce.Row, the same on every rank.

    Raises:
        HostlibError: no controller, a missing rank, a silent switch.
    """
    torch.set_num_threads(1)
    rows = []
    mechanisms = [find(name) for name in options.mechanisms]
    servers = max(mechanism.servers for mechanism in mechanisms)
    with join_group(here, "bench", options.deadline_s, servers) as (context, job):
        if context.rank >= context.world_size:
            for number, mechanism in enumerate(mechanisms):
                if context.rank - context.world_size < mechanism.servers:
                    serve(mechanism, context, options.controller, f"{job}-{number}", options.address)
            context.detector.wait_for_workers()
            return {"rows": []}
        for number, mechanism in enumerate(mechanisms):
            name = mechanism.name
            collective = create_collective(mechanism, context, options.controller, f"{job}-{number}", options.address)
            try:
                for dtype in options.dtypes:
                    for size in options.sizes:
                        what = {"mechanism": name, "size_bytes": size, "dtype": dtype}
                        report({"event": "measuring", **what})
                        bench = Measurement(options, here, context, collective, mechanism, dtype, size)
                        rows.append({"mechanism": name, **bench.row()})
                        report({"event": "row", **what})
            finally:
                collective.close()
    return {"rows": rows}


class Measurement:
    """Measurement of one mechanism, type and size."""

    def __init__(
        self,
        options: RankOptions,
        here: LaunchEnvironment,
        context: RankContext,
        collective: Collective,
        mechanism: Mechanism,
        dtype: str,
        size: int,
    ) -> None:
        self.options, self.here, self.context, self.collective = options, here, context, collective
        self.mechanism, self.dtype = mechanism, dtype
        self.count = size // DTYPES[dtype].itemsize
        self.values = torch.empty(self.count, dtype=DTYPES[dtype])
        for start, block in drawn(options.seed, context.rank, self.count, DTYPES[dtype]):
            self.values[start : start + len(block)] = block
        self.work = torch.empty_like(self.values)
        self.bits = hashlib.sha256()

    def row(self) -> dict[str, Any]:
        """Combine the ranks' measurements."""
        for _ in range(self.options.warm_up):
            self._seconds(1)
        iterations = self.options.iterations or self._suitable()
        before = self._retransmits()
        times_s = [self._seconds(iterations) / iterations for _ in range(self.options.repeats)]
        mine = {
            "times_s": times_s,
            "retransmits": self._retransmits() - before,
            "bits": self.bits.hexdigest(),
            "wrong": wrong_elements(self.work, self.options.seed, self.context.world_size, self._sum_unit()),
        }
        everybody: list[Any] = [None] * self.context.world_size
        dist.all_gather_object(everybody, mine)
        return self._together(everybody)

    def _seconds(self, iterations: int) -> float:
        """Time of a number of all-reduces on this rank, after a barrier; filling the tensor does not count."""
        seconds = 0.0
        dist.barrier()
        for _ in range(iterations):
            self.work.copy_(self.values)
            begin = time.perf_counter()
            self.collective.allreduce(self.work, average=False).wait()
            seconds += time.perf_counter() - begin
        self.bits.update(self.work.view(torch.uint8).numpy().data)
        return seconds

    def _suitable(self) -> int:
        """Number of iterations for one measurement, chosen by rank 0."""
        found = [math.ceil(TARGET_S / max(self._seconds(1), 1e-6))]
        dist.broadcast_object_list(found)
        return max(1, min(found[0], MOST_ITERATIONS))

    def _retransmits(self) -> int:
        engine = self.collective.stats()
        return engine["retransmits"] if engine is not None else tcp_retransmits(leave_out_port=self.here.port)

    def _sum_unit(self) -> float | None:
        """Half a unit in the last place of 1 for sums in floating point; None for the switch's fixed point."""
        if not self.mechanism.sends_messages or not self.work.is_floating_point():
            return None
        library = isinstance(self.collective, GlooCollective)
        return torch.finfo(self.work.dtype if library else torch.float32).eps / 2

    def _together(self, everybody: list[dict[str, Any]]) -> dict[str, Any]:
        slowest = [max(times) for times in zip(*(rank["times_s"] for rank in everybody), strict=True)]
        time_s = statistics.median(slowest)
        size = self.values.nbytes
        common = Counter(rank["bits"] for rank in everybody).most_common(1)[0][0]
        error = [rank["wrong"] if rank["bits"] == common else self.count for rank in everybody]
        algbw = size / time_s / 1e9
        return {
            "size_bytes": size,
            "count": self.count,
            "dtype": self.dtype,
            "time_us": round(time_s * 1e6, 1),
            "fastest_us": round(min(slowest) * 1e6, 1),
            "slowest_us": round(max(slowest) * 1e6, 1),
            "algbw_gbytes_per_s": round(algbw, 6),
            "busbw_gbytes_per_s": round(algbw * 2 * (self.context.world_size - 1) / self.context.world_size, 6),
            "wrong": max(error),
            "retransmits": sum(rank["retransmits"] for rank in everybody),
        }


def drawn(seed: int, rank: int, count: int, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
    """Generate a rank's tensor, which every rank can reproduce; yields start and elements of each block."""
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        generator = np.random.Generator(np.random.SFC64([seed, rank, start]))
        if dtype.is_floating_point:
            values = torch.from_numpy(generator.random(size, np.float32) - np.float32(0.5)).to(dtype)
        else:
            values = torch.from_numpy(generator.integers(-INTEGERS, INTEGERS, size, np.int32))
        yield start, values


def wrong_elements(result: Tensor, seed: int, world_size: int, sum_unit: float | None) -> int:
    """Count elements of a sum that are wrong: not exact, or for real numbers outside the error bound.

    Args:
        sum_unit: for sums in floating point, half a unit in the last place of 1: each of the n - 1 additions may err by
            that times the sum of magnitudes (Higham, Accuracy and Stability, 4.2). None: fixed point, with bound n *
            2^(e + h - 31). In both cases the result's own rounding comes on top.
    """
    error = 0
    ranks = [drawn(seed, rank, result.numel(), result.dtype) for rank in range(world_size)]
    for blocks in zip(*ranks, strict=True):
        start = blocks[0][0]
        mine = result[start : start + len(blocks[0][1])]
        if not result.is_floating_point():
            exact = sum(block.to(torch.int64) for _, block in blocks)
            error += int((mine.to(torch.int64) != exact).sum())
            continue
        values = [block.to(torch.float64) for _, block in blocks]
        total = sum(values[1:], values[0])
        if sum_unit is None:
            largest = max(float(v.abs().max()) for v in values)
            code = math.frexp(largest)[1] + constants.EXPONENT_BIAS
            allowed = torch.full_like(total, error_bound(code, world_size))
        else:
            relative = (world_size - 1) * sum_unit
            allowed = relative / (1 - relative) * sum((v.abs() for v in values[1:]), values[0].abs())
        kind = torch.finfo(result.dtype)
        allowed = (allowed + kind.eps / 2 * total.abs()) * (1 + kind.eps) + kind.tiny * kind.eps
        # NaN is outside any bound.
        error += int((~((mine.to(torch.float64) - total).abs() <= allowed)).sum())
    return error


def main() -> None:
    """Run this process's part."""
    from hostlib.launch.rank_main import run_part

    run_part("hostlib bench", lambda text, here, tell: measure(RankOptions.from_json(text), here, tell))


if __name__ == "__main__":
    main()
