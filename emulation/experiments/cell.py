"""Run one cell of an experiment on a running fabric: start the workers, watch them, and collect measurements."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from emulation.errors import EmulationError
from emulation.experiments.measurement import Measured, Snapshot, measured
from emulation.experiments.worker_options import (
    DONE,
    MEASURED,
    PHASES,
    WARM_UP,
    ExchangeRole,
    ReplayOptions,
    TrainingOptions,
    role_in,
)
from emulation.networks.realise import Host, RunningNetwork
from hostlib.errors import from_json
from hostlib.launch.fork_server import STACKS, ForkServer
from hostlib.launch.launcher import OPTIONS_VARIABLE
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import server, worker
from hostlib.strategies.plan import FLOAT_BYTES
from hostlib.strategies.strategy import Choice
from hostlib.transport.segment_length import shrunk_segment_bytes
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.simulator.workload import Tensor as WorkloadTensor
from simulation.simulator.workload import Workload

CONTROL_INTERFACE = "control"  # of each host in a namespace
GO_AFTER_S = 0.1  # from the last worker's arrival to the common start: all must have heard of it
LOOK_S = 0.05
START_S = 60.0
END_S = 20.0
STACKS_S = 1.0  # for a process to write what it does
FRAMES = 4  # of those, named in an error
REPLAY, TRAINING = "emulation.experiments.replay_worker", "emulation.experiments.training_worker"
MANY_EPOCHS = 1_000_000  # steps end it


def measure_cell(
    experiment: Experiment, cell: Cell, dilation: float, fabric: RunningNetwork, fork_server: ForkServer
) -> Measured:
    """Replay one cell.

    Raises:
        EmulationError: a worker failed or died; all of them have been stopped.
    """
    with TemporaryDirectory(prefix=f"netfold-cell-{os.getpid()}-") as folder:
        jobs = [
            JobProcesses(experiment, cell, dilation, fabric, fork_server, Path(folder), number)
            for number in range(cell.jobs)
        ]
        with _all(jobs):
            for job in jobs:
                job.start()
            snapshots = {phase: _wait_for_all(jobs, fabric, phase, fork_server) for phase in PHASES}
            _ended(jobs, fabric, fork_server)
            reports = [report for job in jobs for report in job.reports()]
    return measured(experiment, dilation, reports, snapshots[MEASURED].until(snapshots[DONE]))


class JobProcesses:
    """The processes of one job: workers, then servers."""

    def __init__(
        self,
        experiment: Experiment,
        cell: Cell,
        dilation: float,
        fabric: RunningNetwork,
        fork_server: ForkServer,
        folder: Path,
        number: int,
    ) -> None:
        self.cell, self._fork_server, self._folder, self._number = cell, fork_server, folder, number
        self._fabric = fabric
        choice = cell.choice
        self._past = choice.mechanism.sends_messages or choice.strategy.own_messages
        # Assigned in turn, so that each job is in every rack.
        workers = fabric.hosts[number : cell.workers * cell.jobs : cell.jobs]
        first = cell.workers * cell.jobs + number * choice.hosts
        named = {worker(rank): host for rank, host in enumerate(workers)}
        named |= {server(n): host for n, host in enumerate(fabric.hosts[first : first + choice.hosts])}
        self.hosts: list[Host] = [*workers, *(named[name] for name in choice.server_hosts)]
        self.store = fabric.store()
        self._what = experiment, cell, dilation
        self.pids: dict[int, int] = {}

    def start(self) -> None:
        for rank, host in enumerate(self.hosts):
            result = str(self._result(rank))
            module, options = process_options(*self._what, rank, self._fabric.controller, host.address, result)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(self.hosts)),
                "MASTER_ADDR": self.store.host,
                "MASTER_PORT": str(self.store.port),
                OPTIONS_VARIABLE: options,
            }
            if host.netns is not None:
                # With in-network mechanisms, Gloo only serves for rendezvous.
                environment["GLOO_SOCKET_IFNAME"] = host.interface if self._past else CONTROL_INTERFACE
            with self._errors(rank).open("ab") as errors:
                pid = self._fork_server.fork(module, environment, host.netns, errors.fileno(), name=host.name)
            self.pids[pid] = rank

    def _result(self, rank: int) -> Path:
        return self._folder / f"{self._number}-{rank}.json"

    def _errors(self, rank: int) -> Path:
        return self._folder / f"{self._number}-{rank}.err"

    def waits_at(self, phase: str) -> bool:
        """Whether all workers have arrived."""
        return bool(self.store.check([f"{phase}/{rank}" for rank in range(self.cell.workers)]))

    @property
    def ranks(self) -> list[tuple[str, int]]:
        """(host, pid) of all processes."""
        return [(self.hosts[rank].name, pid) for pid, rank in self.pids.items()]

    def go(self, phase: str, at_ns: int) -> None:
        self.store.set(f"{phase}/go", str(at_ns))

    def failure(self) -> str | None:
        """The last message of the first process that failed."""
        for pid, rank in self.pids.items():
            status = self._fork_server.ended.get(pid)
            if status is None or status == 0:
                continue
            if status < 0:
                return f"{self.hosts[rank].name} (pid {pid}) was killed by {signal.Signals(-status).name}"
            lines = [line for line in self._errors(rank).read_text().splitlines() if line.strip()]
            return f"{self.hosts[rank].name}: " + (
                lines[-1].removeprefix("error: ") if lines else f"exit code {status}"
            )
        return None

    @property
    def over(self) -> bool:
        return all(self._fork_server.ended.get(pid) == 0 for pid in self.pids)

    def stuck(self) -> list[tuple[str, str]]:
        """(host, what it does) of the processes that still run."""
        running = [(rank, pid) for pid, rank in self.pids.items() if pid not in self._fork_server.ended]
        for _, pid in running:
            with suppress(ProcessLookupError):  # It has ended meanwhile.
                os.kill(pid, STACKS)
        time.sleep(STACKS_S)
        return [(self.hosts[rank].name, innermost_frames(self._errors(rank).read_text())) for rank, _ in running]

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(self._result(rank).read_text()) for rank in range(self.cell.workers)]

    def stop(self) -> None:
        for pid in self.pids:
            if pid not in self._fork_server.ended:
                os.kill(pid, signal.SIGKILL)


def process_options(
    experiment: Experiment, cell: Cell, dilation: float, rank: int, controller: str, address: str, result: str
) -> tuple[str, str]:
    """The module that a process runs, a worker's or a server's, and its options as JSON."""
    common: dict[str, Any] = {
        "mechanism": cell.mechanism,
        "controller": controller,
        "address": address,
        "deadline_s": START_S,
    }
    if (training := experiment.training) is not None:
        train: dict[str, Any] = {"model": cell.model, "data": training.data}
        train |= {"batch_size": training.batch_size, "bucket_mb": training.bucket_mb}
        steps = {"steps": training.warm_up + training.iterations, "epochs": MANY_EPOCHS, "seed": experiment.seed}
        return TRAINING, TrainingOptions({**common, **train, **steps}, training.warm_up, result).to_json()
    workload = experiment.workload(cell)
    kinds = collectives_of(workload, cell)
    # All workers compute like the trace's first one.
    backward = zip(workload.backward_ns[0], workload.released, strict=True)
    group = next((tensor.workers for tensor in workload.summed if rank in tensor.workers), ())
    others = {t for t, tensor in enumerate(workload.tensors) if tensor.workers and rank not in tensor.workers}
    sizes = [
        0 if t in others or tensor.exchange is not None else elements(tensor, done, cell.workers)
        for t, (tensor, done) in enumerate(zip(workload.tensors, kinds, strict=True))
    ]
    options = ReplayOptions(
        **common,
        slots=cell.slots,
        segment_bytes=shrunk_segment_bytes(experiment.replay.shrink),
        elements=tuple(sizes),
        collectives=tuple("" if each is Collective.ALL_REDUCE else each.value for each in kinds),
        group=group,
        forward=tuple(round(int(ns) * dilation) for ns in workload.forward_ns),
        backward=tuple(
            (round(int(ns) * dilation), tuple(t for t in ready if t not in others)) for ns, ready in backward
        ),
        errands=workload.errands,
        asked=tuple(map(tuple, workload.asked)),
        awaited=tuple(map(tuple, workload.awaited)),
        own_messages=any(tensor.exchange is not None for tensor in workload.tensors),
        hosts=exchange_hosts(cell.choice, cell.workers),
        roles=roles_of(workload, cell.choice, cell.workers, rank, dilation),
        warm_up=experiment.replay.warm_up,
        iterations=experiment.replay.iterations,
        result=result,
    )
    return REPLAY, options.to_json()


def collectives_of(workload: Workload, cell: Cell) -> list[Collective]:
    """What is done with each of a workload's tensors."""
    return [cell.does if tensor.collective is None else tensor.collective for tensor in workload.tensors]


def elements(tensor: WorkloadTensor, collective: Collective, workers: int) -> int:
    """How many values a tensor has; where each worker has a shard, as many as make shards of the same size."""
    count = tensor.bytes // FLOAT_BYTES
    return math.ceil(count / workers) * workers if collective.blocks(workers) > 1 else count


def exchange_hosts(choice: Choice, workers: int) -> dict[str, int]:
    """Numbers of the nodes that exchange a strategy's own messages.

    If a server shares a worker's host, the worker does the server's part.
    """
    own = choice.server_hosts[choice.mechanism.servers :]
    return {name: workers + number for number, name in enumerate(own)} | {worker(r): r for r in range(workers)}


def roles_of(workload: Workload, choice: Choice, workers: int, rank: int, dilation: float) -> tuple[ExchangeRole, ...]:
    """The roles of a process, a worker or a strategy's own server, in the workload's exchanges."""
    number = rank if rank < workers else rank - choice.mechanism.servers
    hosts = exchange_hosts(choice, workers)
    node = next((name for name, host in hosts.items() if host == number and (rank < workers or number >= workers)), "")
    roles = [
        role_in(place, tensor.exchange, node, dilation)
        for place, tensor in enumerate(workload.tensors)
        if tensor.exchange is not None
    ]
    return tuple(role for role in roles if role is not None)


def innermost_frames(stacks: str) -> str:
    """Say where a process's main thread is, from what faulthandler wrote."""
    frames = re.findall(r'File "(?:.*/)?(.+)", line (\d+) in (\S+)', stacks.rpartition("Current thread")[2])
    named = " < ".join(f"{function} ({file}:{line})" for file, line, function in frames[:FRAMES])
    return f"is in {named}" if frames else "does not answer"


@contextmanager
def _all(jobs: list[JobProcesses]) -> Iterator[None]:
    try:
        yield
    finally:
        for job in jobs:
            job.stop()


def _wait_for_all(jobs: list[JobProcesses], fabric: RunningNetwork, phase: str, fork_server: ForkServer) -> Snapshot:
    """Wait for all workers of all jobs, take a snapshot of the counters, and let the workers go on together."""
    give_up = time.monotonic() + START_S if phase == WARM_UP else math.inf
    while not all(job.waits_at(phase) for job in jobs):
        _check(jobs, fabric, fork_server)
        if time.monotonic() > give_up:
            raise EmulationError(f"workers did not begin within {START_S:.0f} s")
    snapshot = Snapshot.of(fabric, [rank for job in jobs for rank in job.ranks])
    at_ns = time.monotonic_ns() + (0 if phase == DONE else round(GO_AFTER_S * 1e9))
    for job in jobs:
        job.go(phase, at_ns)
    return snapshot


def _ended(jobs: list[JobProcesses], fabric: RunningNetwork, fork_server: ForkServer) -> None:
    give_up = time.monotonic() + END_S
    while not all(job.over for job in jobs):
        _check(jobs, fabric, fork_server)
        if time.monotonic() > give_up:
            late = "; ".join(f"{name} {doing}" for job in jobs for name, doing in job.stuck())
            raise EmulationError(f"workers did not end within {END_S:.0f} s: {late}")


def _check(jobs: list[JobProcesses], fabric: RunningNetwork, fork_server: ForkServer) -> None:
    # Training would continue over the hosts, but that is not what is measured.
    if dead := [name for name, process in fabric.processes.items() if not process.alive]:
        raise EmulationError(f"{', '.join(dead)} died; run the experiment again to go on")
    failed = next((e for e in fork_server.events(LOOK_S) if e["event"] == "failed"), None)
    if failed is not None:
        error = from_json(failed["error"])
        raise EmulationError(f"rank {failed['rank']}: {error}") from error
    for job in jobs:
        if (why := job.failure()) is not None:
            raise EmulationError(why)
