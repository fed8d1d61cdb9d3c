"""One cell of an experiment on a fabric that stands: start the workers, watch over them, and say what was measured."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from emulation.errors import EmulationError
from emulation.replay import DONE, MEASURED, PHASES, WARM_UP, ReplayOptions
from emulation.topology.realisation import Fabric, Host
from emulation.zygote import Zygote
from hostlib.launch import OPTIONS_VARIABLE
from hostlib.registry import find
from simulation.experiment import Cell, Experiment

NS_PER_MS = 1e6
CONTROL_INTERFACE = "control"  # of every host in a namespace
GO_AFTER_S = 0.1  # from the last one's coming to the common start: every worker must have heard of it
LOOK_S = 0.05
START_S = 60.0
BUSY = 0.9  # of a core, or of the machine: above that, somebody waited for it
LATE = 0.02  # of the time: a worker that woke up too late for so long was not a GPU
COMFORTABLE = 0.6  # how busy a dilation that mends it leaves what was too busy
LEAST_STEP = 1.5  # from a dilation to the next
END_S = 20.0

Bytes = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Why a cell says more of this machine than of the network that is meant, and the dilation that would mend it."""

    why: str
    dilation: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one cell gave. Times and bytes as on the network that is meant: undilated, unshrunk.

    Attributes:
        iterations_ms: of each measured iteration, on the slowest worker.
        links: cable -> bytes (sent, received) of one iteration, as its lower end sees them.
        cpu: share of a core that each switch took, and `machine`, of all cores.
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
        """What of this machine was too slow, if anything was."""
        name, busy = max(self.cpu.items(), key=lambda each: each[1])
        enough = math.ceil(dilation * max(busy / COMFORTABLE, LEAST_STEP))
        if busy > BUSY:
            what = "the machine" if name == "machine" else name
            return Bottleneck(f"{what} was {busy:.0%} busy: --dilation {enough} would mend that", enough)
        if self.late > LATE:
            return Bottleneck(f"workers woke up {self.late:.1%} late: --dilation {enough} would mend that", enough)
        return None


@dataclass(slots=True)
class Snapshot:
    """Counters at a moment."""

    at_s: float
    links: Bytes
    switches_s: dict[str, float]
    busy_s: float
    total_s: float

    @classmethod
    def of(cls, fabric: Fabric) -> Snapshot:
        busy, total = machine_s()
        return cls(time.monotonic(), fabric.carried(), fabric.cpu_s(), busy, total)


def machine_s() -> tuple[float, float]:
    """CPU seconds of all cores since the start: busy ones, and all. Source: proc(5), /proc/stat."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [int(word) for word in words]  # user nice system idle iowait irq softirq steal
    idle = ticks[3] + ticks[4]
    unit = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle) / unit, sum(ticks) / unit


def measure_cell(experiment: Experiment, cell: Cell, dilation: float, fabric: Fabric, zygote: Zygote) -> Measured:
    """Replay one cell.

    Raises:
        EmulationError: a worker failed or died; all of them have been stopped.
    """
    with TemporaryDirectory(prefix=f"netfold-cell-{os.getpid()}-") as folder:
        jobs = [
            Players(experiment, cell, dilation, fabric, zygote, Path(folder), number) for number in range(cell.jobs)
        ]
        with _all(jobs):
            for job in jobs:
                job.start()
            snapshots = {phase: _meet(jobs, fabric, phase, zygote) for phase in PHASES}
            _ended(jobs, fabric, zygote)
            reports = [report for job in jobs for report in job.reports()]
    return _measured(experiment, cell, dilation, snapshots[MEASURED], snapshots[DONE], reports)


class Players:
    """The processes of one job: workers, then servers."""

    def __init__(
        self,
        experiment: Experiment,
        cell: Cell,
        dilation: float,
        fabric: Fabric,
        zygote: Zygote,
        folder: Path,
        number: int,
    ) -> None:
        self.cell, self._zygote, self._folder, self._number = cell, zygote, folder, number
        self._fabric = fabric
        mechanism = find(cell.mechanism)
        self._past = not mechanism.needs_fabric
        # Dealt out, so that each job is in every rack.
        workers = fabric.hosts[number : cell.workers * cell.jobs : cell.jobs]
        first = cell.workers * cell.jobs + number * mechanism.servers
        self.hosts: list[Host] = [*workers, *fabric.hosts[first : first + mechanism.servers]]
        self.store = fabric.store()
        self._options = _options(experiment, cell, dilation)
        self.pids: dict[int, Host] = {}

    def start(self) -> None:
        for rank, host in enumerate(self.hosts):
            options = ReplayOptions(
                controller=self._fabric.controller, address=host.address, result=str(self._result(rank)),
                **self._options,
            )  # fmt: skip
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(self.hosts)),
                "MASTER_ADDR": self.store.host,
                "MASTER_PORT": str(self.store.port),
                OPTIONS_VARIABLE: options.to_json(),
                # What goes through the switch by itself has Gloo only for meeting.
            }
            if host.netns is not None:
                # What goes through the switch by itself has Gloo only for meeting.
                environment["GLOO_SOCKET_IFNAME"] = host.interface if self._past else CONTROL_INTERFACE
            pid = self._zygote.fork("emulation.replay", environment, host.netns, self._errors(host))
            self.pids[pid] = host

    def _result(self, rank: int) -> Path:
        return self._folder / f"{self._number}-{rank}.json"

    def _errors(self, host: Host) -> Path:
        return self._folder / f"{self._number}-{host.name}.err"

    def waits_at(self, phase: str) -> bool:
        """Whether all workers are there."""
        return bool(self.store.check([f"{phase}/{rank}" for rank in range(self.cell.workers)]))

    def go(self, phase: str, at_ns: int) -> None:
        self.store.set(f"{phase}/go", str(at_ns))

    def failure(self) -> str | None:
        """What the first of them that ended badly said last."""
        for pid, host in self.pids.items():
            status = self._zygote.ended.get(pid)
            if status is None or status == 0:
                continue
            if status < 0:
                return f"{host.name} (pid {pid}) was killed by {signal.Signals(-status).name}"
            lines = [line for line in self._errors(host).read_text().splitlines() if line.strip()]
            return f"{host.name}: " + (lines[-1].removeprefix("error: ") if lines else f"exit code {status}")
        return None

    @property
    def over(self) -> bool:
        return all(self._zygote.ended.get(pid) == 0 for pid in self.pids)

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(self._result(rank).read_text()) for rank in range(self.cell.workers)]

    def stop(self) -> None:
        for pid in self.pids:
            if pid not in self._zygote.ended:
                os.kill(pid, signal.SIGKILL)


def _options(experiment: Experiment, cell: Cell, dilation: float) -> dict[str, Any]:
    workload = experiment.workload(cell)
    # All workers compute as the trace's first does.
    steps = zip(workload.backward_ns[0], workload.released, strict=True)
    return {
        "mechanism": cell.mechanism,
        "deadline_s": START_S,
        "elements": tuple(tensor.bytes // 4 for tensor in workload.tensors),
        "forward_ns": round(int(workload.forward_ns.sum()) * dilation),
        "backward": tuple((round(int(ns) * dilation), tensors) for ns, tensors in steps),
        "warm_up": experiment.replay.warm_up,
        "iterations": experiment.replay.iterations,
    }


@contextmanager
def _all(jobs: list[Players]) -> Iterator[None]:
    try:
        yield
    finally:
        for job in jobs:
            job.stop()


def _meet(jobs: list[Players], fabric: Fabric, phase: str, zygote: Zygote) -> Snapshot:
    """Wait until all workers of all jobs are there, look at the counters, and let them go on together."""
    give_up = time.monotonic() + START_S if phase == WARM_UP else math.inf
    while not all(job.waits_at(phase) for job in jobs):
        _check(jobs, fabric, zygote)
        if time.monotonic() > give_up:
            raise EmulationError(f"workers did not begin within {START_S:.0f} s")
    snapshot = Snapshot.of(fabric)
    at_ns = time.monotonic_ns() + round(GO_AFTER_S * 1e9)
    for job in jobs:
        job.go(phase, at_ns)
    return snapshot


def _ended(jobs: list[Players], fabric: Fabric, zygote: Zygote) -> None:
    give_up = time.monotonic() + END_S
    while not all(job.over for job in jobs):
        _check(jobs, fabric, zygote)
        if time.monotonic() > give_up:
            raise EmulationError(f"workers did not end within {END_S:.0f} s")


def _check(jobs: list[Players], fabric: Fabric, zygote: Zygote) -> None:
    # Training would go on over the hosts: but that is not what is to be measured.
    if dead := [name for name, process in fabric.processes.items() if not process.alive]:
        raise EmulationError(f"{', '.join(dead)} died; run the experiment again to go on")
    failed = next((e for e in zygote.events(LOOK_S) if e["event"] == "failed"), None)
    if failed is not None:
        raise EmulationError(f"rank {failed['rank']}: {failed['message']}")
    for job in jobs:
        if (why := job.failure()) is not None:
            raise EmulationError(why)


def _measured(
    experiment: Experiment,
    cell: Cell,
    dilation: float,
    begin: Snapshot,
    end: Snapshot,
    reports: list[Mapping[str, Any]],
) -> Measured:
    count = experiment.replay.iterations
    start_ns = reports[0]["start_ns"]
    slowest = [max(report["ends_ns"][number] for report in reports) for number in range(count)]
    iterations_ms = [
        (done - before) / NS_PER_MS / dilation for before, done in zip([start_ns, *slowest], slowest, strict=False)
    ]
    wall_s = end.at_s - begin.at_s - GO_AFTER_S
    cpu = {name: (end.switches_s[name] - spent) / wall_s for name, spent in begin.switches_s.items()}
    cpu["machine"] = (end.busy_s - begin.busy_s) / (end.total_s - begin.total_s)
    per_iteration = experiment.replay.shrink / count
    links = {
        name: {
            "sent": round((sent - begin.links[name][0]) * per_iteration),
            "received": round((received - begin.links[name][1]) * per_iteration),
        }
        for name, (sent, received) in end.links.items()
    }
    last_ns = min(begin for report in reports for _, _, begin, _ in report["spans"])
    return Measured(
        iterations_ms,
        links,
        cpu,
        max(report["late_ns"] for report in reports) / (slowest[-1] - start_ns),
        sum(report["retransmits"] for report in reports),
        {f"worker{number}": _spans(report, last_ns, dilation) for number, report in enumerate(reports)},
    )


def _spans(report: Mapping[str, Any], begin_ns: int, dilation: float) -> list[dict[str, Any]]:
    def ms(at_ns: int) -> float:
        return round((at_ns - begin_ns) / NS_PER_MS / dilation, 3)

    return [
        {"kind": kind, "name": name, "start_ms": ms(begin), "end_ms": ms(end)}
        for kind, name, begin, end in report["spans"]
    ]
