"""Evaluate a cell's measurements from the workers' reports and the counters."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emulation.networks.realise import RunningNetwork
from hostlib.system.machine import cpu_seconds
from simulation.experiments.experiment_file import Experiment

NS_PER_MS = 1e6
BUSY = 0.9  # of a core, or of the machine: above that, packets waited for it
LATE = 0.02  # of the time: a worker that woke up late for longer did not behave like a GPU
COMFORTABLE = 0.6  # load that a suggested dilation leaves on the bottleneck
LEAST_STEP = 1.5  # factor between suggested dilations

Bytes = dict[str, tuple[int, int]]
WrittenReport = Mapping[str, Any]  # emulation.experiments.replay_worker.WorkerReport as JSON


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage during the measured iterations.

    Attributes:
        links: cable -> bytes (sent, received), as its lower end sees them.
        cpu: share of a core that each switch used, and `machine`, of all cores.
    """

    links: Bytes
    cpu: dict[str, float]


@dataclass(slots=True)
class Snapshot:
    """The counters at one time."""

    at_s: float
    links: Bytes
    switches_s: dict[str, float]
    busy_s: float
    total_s: float

    @classmethod
    def of(cls, fabric: RunningNetwork) -> Snapshot:
        busy, total = cpu_seconds()
        return cls(time.monotonic(), fabric.carried(), fabric.cpu_s(), busy, total)

    def until(self, end: Snapshot) -> Usage:
        """The usage between two snapshots."""
        wall_s = end.at_s - self.at_s
        cpu = {name: (end.switches_s[name] - spent) / wall_s for name, spent in self.switches_s.items()}
        cpu["machine"] = (end.busy_s - self.busy_s) / max(end.total_s - self.total_s, 1e-9)
        links = {
            name: (sent - self.links[name][0], received - self.links[name][1])
            for name, (sent, received) in end.links.items()
        }
        return Usage(links, cpu)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Why a cell's result reflects this machine instead of the network, and the dilation that would fix it."""

    why: str
    dilation: float


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's measurements. Times and bytes are those of the real network: undilated, unshrunk.

    Attributes:
        iterations_ms: of each measured iteration, on the slowest worker.
        links: cable -> bytes (sent, received) of one iteration, as its lower end sees them.
        cpu: share of a core that each switch used, and `machine`, of all cores.
        late: share of the time for which the worst worker was late.
        timeline: node -> [{kind, name, start_ms, end_ms}] of the last iteration.
    """

    iterations_ms: list[float]
    links: dict[str, dict[str, int]]
    cpu: dict[str, float]
    late: float
    retransmits: int
    timeline: dict[str, list[dict[str, Any]]]

    @property
    def iteration_ms(self) -> float:
        return statistics.median(self.iterations_ms)

    @property
    def spread_ms(self) -> float:
        return max(self.iterations_ms) - min(self.iterations_ms)

    def bottleneck(self, dilation: float) -> Bottleneck | None:
        """The part of this machine that was too slow, if any."""
        name, busy = max(self.cpu.items(), key=lambda each: each[1], default=("", 0.0))
        enough = math.ceil(dilation * max(busy / COMFORTABLE, LEAST_STEP))
        if busy > BUSY:
            what = "the machine" if name == "machine" else name
            return Bottleneck(f"{what} was {busy:.0%} busy: --dilation {enough} would mend that", enough)
        if self.late > LATE:
            return Bottleneck(f"workers woke up {self.late:.1%} late: --dilation {enough} would mend that", enough)
        return None


def measured(
    experiment: Experiment,
    dilation: float,
    reports: Sequence[WrittenReport],
    usage: Usage,
) -> Measured:
    """Evaluate workers' reports and usage, scaled to the real network."""
    count = len(reports[0]["ends_ns"])
    # Each worker by its own clock: those of real hosts differ.
    ends = [[end - report["start_ns"] for end in report["ends_ns"]] for report in reports]
    slowest = [max(end[number] for end in ends) for number in range(count)]
    iterations_ms = [
        (done - before) / NS_PER_MS / dilation for before, done in zip([0, *slowest], slowest, strict=False)
    ]
    per_iteration = experiment.replay.shrink / count
    links = {
        name: {"sent": round(sent * per_iteration), "received": round(received * per_iteration)}
        for name, (sent, received) in usage.links.items()
    }
    begins_ns = (begin - report["start_ns"] for report in reports for _, _, begin, _ in report["spans"])
    begin_ns = min(begins_ns, default=0)
    return Measured(
        iterations_ms,
        links,
        usage.cpu,
        max(report["late_ns"] for report in reports) / slowest[-1],
        sum(report["retransmits"] for report in reports),
        {
            f"worker{number}": _spans(report, report["start_ns"] + begin_ns, dilation)
            for number, report in enumerate(reports)
        },
    )


def _spans(report: WrittenReport, begin_ns: int, dilation: float) -> list[dict[str, Any]]:
    def ms(at_ns: int) -> float:
        return round((at_ns - begin_ns) / NS_PER_MS / dilation, 3)

    return [
        {"kind": kind, "name": name, "start_ms": ms(begin), "end_ms": ms(end)}
        for kind, name, begin, end in report["spans"]
    ]
