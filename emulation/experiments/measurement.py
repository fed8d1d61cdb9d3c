"""Evaluate a cell's measurements from the workers' reports and the counters."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emulation.experiments.packet_counts import marked_packets
from emulation.experiments.process_times import ProcessTimes
from emulation.networks.realise import RunningNetwork
from hostlib.system.machine import cpu_seconds
from hostlib.system.network_namespace import inside
from simulation.experiments.experiment_file import Experiment

NS_PER_MS = 1e6
Bytes = dict[str, tuple[int, int]]
WrittenReport = Mapping[str, Any]  # emulation.experiments.replay_worker.WorkerReport as JSON


@dataclass(frozen=True, slots=True)
class Lack:
    """What the cell's own processes on this machine lacked during the measured iterations.

    Attributes:
        switches, ranks: name -> share of the time for which it was ready to run, but had no core.
        own: share of all cores that the cell's processes used.
        others: share of all cores that everything else used.
    """

    switches: dict[str, float]
    ranks: dict[str, float]
    own: float
    others: float

    def as_json(self) -> dict[str, Any]:
        waited = {name: round(share, 4) for name, share in (self.switches | self.ranks).items()}
        return {"waited": waited, "own_cpu": round(self.own, 3), "other_cpu": round(self.others, 3)}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage during the measured iterations.

    Attributes:
        links: cable -> bytes (sent, received), as its lower end sees them.
        cpu: share of a core that each switch used, and `machine`, of all cores.
        lack: None on real hosts.
        marked: packets that hosts received and that a queue had marked (ECN); None if workers alone counted them.
    """

    links: Bytes
    cpu: dict[str, float]
    lack: Lack | None = None
    marked: int | None = None


@dataclass(slots=True)
class Snapshot:
    """The counters at one time."""

    at_s: float
    links: Bytes
    busy_s: float
    total_s: float
    switches: dict[str, ProcessTimes]
    controller: ProcessTimes
    ranks: dict[tuple[str, int], ProcessTimes]
    this: ProcessTimes
    marked: int

    @classmethod
    def of(cls, fabric: RunningNetwork, ranks: Iterable[tuple[str, int]]) -> Snapshot:
        """Take one.

        Args:
            ranks: (host, pid) of all ranks.
        """
        busy, total = cpu_seconds()
        return cls(
            time.monotonic(),
            fabric.carried(),
            busy,
            total,
            {name: ProcessTimes.of(fabric.processes[name].pid, True) for name in fabric.topology.switches},
            ProcessTimes.of(fabric.processes["controller"].pid),
            {(name, pid): ProcessTimes.of(pid) for name, pid in ranks},
            ProcessTimes.of(os.getpid()),
            sum(inside(host.netns, marked_packets) for host in fabric.hosts if host.netns is not None),
        )

    def until(self, end: Snapshot) -> Usage:
        """The usage between two snapshots."""
        wall_s = end.at_s - self.at_s
        switches = {name: times.since(self.switches[name]) for name, times in end.switches.items()}
        controller = end.controller.since(self.controller)
        cpu = {name: times.cpu_s / wall_s for name, times in (*switches.items(), ("controller", controller))}
        cpu["machine"] = (end.busy_s - self.busy_s) / max(end.total_s - self.total_s, 1e-9)
        links = {
            name: (sent - self.links[name][0], received - self.links[name][1])
            for name, (sent, received) in end.links.items()
        }
        ranks = {key: times.since(self.ranks[key]) for key, times in end.ranks.items()}
        own_s = sum(each.cpu_s for each in (*switches.values(), controller, *ranks.values(), end.this.since(self.this)))
        total_s = max(end.total_s - self.total_s, 1e-9)
        by_host: dict[str, float] = {}
        for (name, _), times in ranks.items():  # a host may have several
            by_host[name] = max(by_host.get(name, 0.0), times.waited_s / wall_s)
        lack = Lack(
            {name: times.waited_s / wall_s for name, times in switches.items()},
            by_host,
            own_s / total_s,
            max(0.0, end.busy_s - self.busy_s - own_s) / total_s,
        )
        return Usage(links, cpu, lack, end.marked - self.marked)


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's measurements. Times and bytes are those of the real network: undilated, unshrunk.

    Attributes:
        iterations_ms: of each measured iteration, on the slowest worker.
        links: cable -> bytes (sent, received) of one iteration, as its lower end sees them.
        cpu: share of a core that each switch used, and `machine`, of all cores.
        late: share of the time for which the worst worker was late.
        timeline: node -> [{kind, name, start_ms, end_ms}] of the last iteration.
        latest: the worst worker's longest delay of a wake-up in each iteration, as a share of the time.
        lack: see Usage.
        peak_memory_bytes: of a worker's process that trained, the largest; None if none did.
        again: retransmits of a worker over its packets in the busier direction, on the worker where that is most.
        marked: see Usage.
        engines: worker -> what its packet engines counted; workers without any are left out.
    """

    iterations_ms: list[float]
    links: dict[str, dict[str, int]]
    cpu: dict[str, float]
    late: float
    retransmits: int
    timeline: dict[str, list[dict[str, Any]]]
    latest: float = 0.0
    lack: Lack | None = None
    peak_memory_bytes: int | None = None
    again: float = 0.0
    marked: int = 0
    engines: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def iteration_ms(self) -> float:
        return statistics.median(self.iterations_ms)

    @property
    def spread_ms(self) -> float:
        return max(self.iterations_ms) - min(self.iterations_ms)


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
        max(sum(report["latest_ns"]) for report in reports) / slowest[-1],
        usage.lack,
        max(report["peak_bytes"] for report in reports) or None,
        max(report["retransmits"] / report["packets"] if report["packets"] else 0.0 for report in reports),
        usage.marked if usage.marked is not None else sum(report["marked"] for report in reports),
        {f"worker{number}": report["engine"] for number, report in enumerate(reports) if report["engine"] is not None},
    )


def _spans(report: WrittenReport, begin_ns: int, dilation: float) -> list[dict[str, Any]]:
    def ms(at_ns: int) -> float:
        return round((at_ns - begin_ns) / NS_PER_MS / dilation, 3)

    return [
        {"kind": kind, "name": name, "start_ms": ms(begin), "end_ms": ms(end)}
        for kind, name, begin, end in report["spans"]
    ]
