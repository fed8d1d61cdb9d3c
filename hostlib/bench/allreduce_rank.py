"""One rank of `hostlib bench`: `python -m hostlib.bench.allreduce_rank`, started by hostlib/launch/launcher.py."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hostlib.bench.allreduce import RankOptions
from hostlib.bench.bench_cells import ALL_REDUCE, WHOLE, BenchCell, bus_factor
from hostlib.bench.exercises import AllReduce, Exercise, exercise_of
from hostlib.bench.reproducible_tensors import drawn
from hostlib.bench.second_job import SecondJob
from hostlib.bench.tcp_stream import received_bytes
from hostlib.collectives.bootstrap import join_group
from hostlib.collectives.create import MechanismCollective, create_collective
from hostlib.collectives.host_levels import HostLevelsCollective
from hostlib.collectives.rank_collectives import RankCollectives
from hostlib.collectives.serve import serve
from hostlib.collectives.shared_memory import SharedMemoryCollective
from hostlib.fabric.static_window import VARIABLE
from hostlib.mechanisms.mechanism import find
from hostlib.system.interfaces import link_bytes
from hostlib.system.machine import busy_share, cpu_seconds
from hostlib.system.tcp_counters import tcp_retransmits
from hostlib.transport.launch_environment import LaunchEnvironment
from hostlib.transport.rank_context import RankContext

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int32")}
TARGET_S = 0.25
MOST_ITERATIONS = 100

Report = Callable[[dict[str, Any]], None]


def measure(options: RankOptions, here: LaunchEnvironment, report: Report) -> dict[str, Any]:
    """Do all measurements; {"rows": [...]}, the fields of hostlib.bench.allreduce.Row, the same on every rank.

    Raises:
        HostlibError: no controller, a missing rank, a silent switch.
    """
    torch.set_num_threads(1)
    if options.window is not None:
        os.environ[VARIABLE] = str(options.window)
    rows = []
    cells = [BenchCell(*each) for each in options.cells]
    servers = max(cell.servers for cell in cells)
    with join_group(here, "bench", options.deadline_s, servers) as (context, job):
        if context.rank >= context.world_size:
            for number, cell in enumerate(cells):
                if context.rank - context.world_size < cell.servers:
                    serve(find(cell.mechanism), context, options.controller, f"{job}-{number}", options.address)
            context.detector.wait_for_workers()
            return {"rows": []}
        for number, cell in enumerate(cells):
            named = {"mechanism": cell.mechanism, "collective": cell.collective}
            with ExitStack() as stack:
                doing = stack.enter_context(closing(_doing(cell, context, options, f"{job}-{number}")))
                second = (
                    stack.enter_context(closing(_second_job(cell, context, options))) if options.beside_job else None
                )
                for dtype in options.dtypes:
                    for size in options.sizes:
                        what = {**named, "size_bytes": size, "dtype": dtype}
                        report({"event": "measuring", **what})
                        measurement = Measurement(options, here, context, doing, cell, dtype, size, second)
                        rows.append({**named, **measurement.row()})
                        report({"event": "row", **what})
    return {"rows": rows}


Doing = MechanismCollective | RankCollectives


def _doing(cell: BenchCell, context: RankContext, options: RankOptions, job: str) -> Doing:
    """What does the cell's collective on this rank."""
    mechanism = find(cell.mechanism)
    if cell.collective == ALL_REDUCE:
        return create_collective(mechanism, context, options.controller, job, options.address)
    return RankCollectives(mechanism, context, options.controller, options.address)


def _second_job(cell: BenchCell, context: RankContext, options: RankOptions) -> SecondJob:
    """A second job of the cell's mechanism, with the same ranks."""
    own, job = context.own_part(range(context.world_size))
    return SecondJob(create_collective(find(cell.mechanism), own, options.controller, job, options.address))


class Measurement:
    """Measurement of one mechanism's collective, type and size."""

    def __init__(
        self,
        options: RankOptions,
        here: LaunchEnvironment,
        context: RankContext,
        doing: Doing,
        cell: BenchCell,
        dtype: str,
        size: int,
        second: SecondJob | None = None,
    ) -> None:
        self.second = second
        self.options, self.here, self.context, self.doing = options, here, context, doing
        self.cell, self.dtype = cell, dtype
        # Of whole shards, as in nccl-tests.
        unit = 1 if cell.collective in WHOLE else context.world_size
        self.count = max(1, size // DTYPES[dtype].itemsize // unit) * unit
        self.values = torch.empty(self.count, dtype=DTYPES[dtype])
        for start, block in drawn(options.seed, context.rank, self.count, DTYPES[dtype]):
            self.values[start : start + len(block)] = block
        self.exercise = self._exercise()
        self.bits = hashlib.sha256()

    def _exercise(self) -> Exercise:
        seed, ranks = self.options.seed, self.context.world_size
        if isinstance(self.doing, RankCollectives):
            return exercise_of(self.cell.collective, self.doing, self.context, self.values, seed, self._sum_unit())
        groups = self.doing.hosts.ranks if isinstance(self.doing, HostLevelsCollective) else None
        return AllReduce(self.doing, self.values, self._where(), seed, ranks, self._sum_unit(), groups)

    def _where(self) -> torch.device:
        """This rank's device."""
        where = torch.device(self.options.device)
        if where.type == "cuda":
            if where.index is None:
                where = torch.device("cuda", self.context.rank % torch.cuda.device_count())
            torch.cuda.set_device(where)
        return where

    def row(self) -> dict[str, Any]:
        """Combine the ranks' measurements."""
        if self.second is not None:
            self.second.start(self.values.nbytes)
        for _ in range(self.options.warm_up):
            self._seconds(1)
        iterations = self.options.iterations or self._suitable()
        before, link_before, by_hosts = self._retransmits(), link_bytes(self.options.address), self._by_hosts()
        marked = self._marked()
        streamed, summed, cores, begin = self._streamed(), self._summed(), cpu_seconds(), time.perf_counter()
        times_s = [self._seconds(iterations) / iterations for _ in range(self.options.repeats)]
        lasted, busy = time.perf_counter() - begin, busy_share(cores)
        tcp, job = (self._streamed() - streamed) / lasted, (self._summed() - summed) / lasted
        link = link_bytes(self.options.address)
        if self.second is not None:
            self.second.stop()
        passed = None if link is None or link_before is None else link - link_before
        mine = {
            "link": None if passed is None else (passed.sent, passed.received),
            "iterations": iterations * self.options.repeats,
            "times_s": times_s,
            "retransmits": self._retransmits() - before,
            "marked": self._marked() - marked,
            "by_hosts": self._by_hosts() - by_hosts,
            "bits": self.bits.hexdigest(),
            "wrong": self.exercise.wrong(),
            "tcp": tcp,
            "job": job,
            "cores_busy": busy,
        }
        everybody: list[Any] = [None] * self.context.world_size
        dist.all_gather_object(everybody, mine)
        return self._together(everybody)

    def _streamed(self) -> int:
        """Bytes that the TCP stream beside this has carried so far."""
        return 0 if self.options.stream is None else received_bytes(Path(self.options.stream))

    def _summed(self) -> int:
        """Bytes that the second job has summed so far."""
        return 0 if self.second is None else self.second.summed_bytes

    def _seconds(self, iterations: int) -> float:
        """Time of a number of them on this rank, after a barrier; filling the tensors does not count."""
        seconds = 0.0
        dist.barrier()
        for _ in range(iterations):
            self.exercise.prepare()
            begin = time.perf_counter()
            self.exercise.run()
            seconds += time.perf_counter() - begin
        if (common := self.exercise.common) is not None:
            self.bits.update(common.view(torch.uint8).numpy().data)
        return seconds

    def _suitable(self) -> int:
        """Number of iterations for one measurement, chosen by rank 0."""
        found = [math.ceil(TARGET_S / max(self._seconds(1), 1e-6))]
        dist.broadcast_object_list(found)
        return max(1, min(found[0], MOST_ITERATIONS))

    def _retransmits(self) -> int:
        if not self.cell.needs_fabric:
            return tcp_retransmits(leave_out_port=self.here.port)
        return (self.doing.stats() or {}).get("retransmits", 0)  # no engine yet, before the first one

    def _marked(self) -> int:
        """Results so far that a queue on their way had marked."""
        return (self.doing.stats() or {}).get("marked", 0) if self.cell.needs_fabric else 0

    def _by_hosts(self) -> int:
        """How many the hosts have done so far, since the switch had failed."""
        return sum(failure["by_hosts"] for failure in self.doing.failures)

    def _sum_unit(self) -> float | None:
        """Half a unit in the last place of 1 for sums in floating point; None for the switch's fixed point."""
        through_switch = not self.cell.sends_messages and not isinstance(self.doing, SharedMemoryCollective)
        if through_switch or not self.values.is_floating_point():
            return None
        in_own_type = self.cell.mechanism == "gloo" and self.cell.collective == ALL_REDUCE
        return torch.finfo(self.values.dtype if in_own_type else torch.float32).eps / 2

    def _together(self, everybody: list[dict[str, Any]]) -> dict[str, Any]:
        slowest = [max(times) for times in zip(*(rank["times_s"] for rank in everybody), strict=True)]
        time_s = statistics.median(slowest)
        size = self.values.nbytes
        common = Counter(rank["bits"] for rank in everybody).most_common(1)[0][0]
        error = [rank["wrong"] if rank["bits"] == common else self.count for rank in everybody]
        algbw = size / time_s / 1e9
        links = [[bytes_ // rank["iterations"] for bytes_ in rank["link"]] for rank in everybody if rank["link"]]
        sent, received = map(max, zip(*links, strict=True)) if links else (None, None)
        return {
            "size_bytes": size,
            "count": self.count,
            "dtype": self.dtype,
            "time_us": round(time_s * 1e6, 1),
            "fastest_us": round(min(slowest) * 1e6, 1),
            "slowest_us": round(max(slowest) * 1e6, 1),
            "algbw_gbytes_per_s": round(algbw, 6),
            "busbw_gbytes_per_s": round(algbw * bus_factor(self.cell.collective, self.context.world_size), 6),
            "wrong": max(error),
            "retransmits": sum(rank["retransmits"] for rank in everybody),
            "marked": sum(rank["marked"] for rank in everybody),
            "by_hosts": max(rank["by_hosts"] for rank in everybody),
            "sent_bytes": sent,
            "received_bytes": received,
            "tcp_gbytes_per_s": None if self.options.stream is None else round(everybody[0]["tcp"] / 1e9, 6),
            "job_gbytes_per_s": None if self.second is None else round(everybody[0]["job"] / 1e9, 6),
            "cores_busy": everybody[0]["cores_busy"],
        }


def main() -> None:
    """Run this process's part."""
    from hostlib.launch.rank_main import run_part

    run_part("hostlib bench", lambda text, here, tell: measure(RankOptions.from_json(text), here, tell))


if __name__ == "__main__":
    main()
