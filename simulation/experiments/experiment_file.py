"""Experiments: one file describes a comparison; simulation, emulation and real hosts read the same file.

A file (TOML) has a `[cells]` table, whose lists are combined, and may have `[topology]` and `[replay]`;
docs/experiments.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import Mechanism, registered
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL, slots_of_stream
from hostlib.schedules.contract import Collective, find_collective
from hostlib.schedules.schedule import FabricUse
from hostlib.strategies.common.sharded_plan import summing
from hostlib.strategies.plan import Plan
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Choice, choose
from hostlib.text import units
from hostlib.topology.topology import Topology
from hostlib.topology.topology_kinds import declare
from simulation.errors import ExperimentError, SimulationError
from simulation.experiments.tables import CellsTable, ExperimentFile, ReplayTable, read_file
from simulation.models.compute import DEFAULT_BATCH, Compute
from simulation.models.workload_source import WorkloadSource, model, recorded
from simulation.simulator.workload import Workload, of_plan, trace_of_size

# In miniature: tensors are at least this much smaller, links and computing this much faster.
TINY, HASTE = 4096.0, 50.0
ROOT_KEYS = tuple(ExperimentFile.model_fields)
STREAMS = {FabricUse.MULTICAST: "streams of chunks", FabricUse.TO_OWNERS: "owners of shards"}  # they share slots


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes:
        model: its name, a trace's path, or the size of a single all-reduce.
        mechanism: preceded by a strategy's name if it is not wfbp.
        bandwidth: of every host's link, as in the file.
        loss: probability that a frame is lost, per link and direction.
        jobs: number of identical jobs that run at the same time, on hosts of their own.
        slots: of each of a job's pools on a switch.
        delay: of every link, one way, as in the file; None for the topology's.
        collective: what is done with a model that is a size.
    """

    model: str
    mechanism: str
    bandwidth: str
    workers: int
    loss: float = 0.0
    jobs: int = 1
    slots: int = SLOTS_PER_POOL
    delay: str | None = None
    collective: str = Collective.ALL_REDUCE.value

    @property
    def does(self) -> Collective:
        return Collective(self.collective)

    @property
    def choice(self) -> Choice:
        """Its strategy, and its mechanism for the collective.

        Raises:
            HostlibError: there are none of these names, or the mechanism does not do the collective.
        """
        choice = choose(self.mechanism)
        return replace(choice, mechanism=choice.mechanism.of(self.does))

    @property
    def kinds(self) -> tuple[Collective, ...]:
        """The collectives that its workers do."""
        choice = self.choice
        return (summing(choice.mechanism), Collective.ALL_GATHER) if choice.strategy.spec.sharded else (self.does,)

    @property
    def short_model(self) -> str:
        """The model's name; of a trace, its file's without the ending."""
        return Path(self.model).stem if is_trace(self.model) else self.model

    @property
    def name(self) -> str:
        """Base name of its files."""
        words = [self.short_model, self.mechanism, self.bandwidth, f"{self.workers}w"]
        words += [f"{self.loss:g}loss"] if self.loss else []
        words += [f"{self.jobs}jobs"] if self.jobs > 1 else []
        words += [f"{self.slots}slots"] if self.slots != SLOTS_PER_POOL else []
        words += [self.delay] if self.delay is not None else []
        words += [self.collective] if self.does is not Collective.ALL_REDUCE else []
        return re.sub(r"[^\w.+=-]", "_", "-".join(words))


@dataclass(frozen=True, slots=True)
class Replay:
    """How a model's training is replayed.

    Attributes:
        dilation: slow-down of everything, links and computing; 0: chosen by the emulation.
        shrink: factor by which tensors are smaller and links slower: the same times with fewer bytes.
        iterations, warm_up: measured iterations, and iterations before them.
        bucket_bytes: gradients are summed together up to this size (unshrunk), as in DDP; 0 for each by itself.
    """

    dilation: float = 0.0
    shrink: float = 1.0
    iterations: int = 3
    warm_up: int = 1
    bucket_bytes: int = 25 * 2**20
    batch: int = DEFAULT_BATCH
    pixels: int | None = None
    tflops: float | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """How models are really trained, instead of replayed.

    Attributes:
        batch_size: of each worker.
        bucket_mb: of DDP, MiB.
        data: as `hostlib train --data` takes it.
    """

    iterations: int = 10
    warm_up: int = 2
    batch_size: int = 16
    bucket_mb: float = 25.0
    data: str = "digits"


@dataclass(frozen=True)
class Experiment:
    """The contents of an experiment file.

    Attributes:
        path: the file.
        topology: its table as in the file; see emulation/networks.
        training: None if computing is replayed.
        emulated: cells are as emulation realises them: shrunk, with its hosts' buffers.
        recommended: the mechanism that `netfold ask --search` names for its model and network; None if it was not asked.
    """

    path: Path
    name: str
    title: str
    text: str
    cells: tuple[Cell, ...]
    topology: Mapping[str, Any]
    replay: Replay
    seed: int = 1
    training: Training | None = None
    emulated: bool = True
    recommended: str | None = None
    _subjects: dict[str, WorkloadSource] = field(default_factory=dict, repr=False)
    _plans: dict[tuple[str, str, int, str], Plan] = field(default_factory=dict, repr=False)

    @cached_property
    def folder(self) -> str:
        """Name of a run's directory."""
        return re.sub(r"[^\w.-]", "_", self.name)

    def miniature(self) -> Experiment:
        """The same cells with one short iteration of tiny tensors each, to test whether they complete.
        take.
        """
        shrink = max(TINY, self.replay.shrink)
        replay = replace(self.replay, dilation=1 / HASTE, shrink=shrink, iterations=1, warm_up=0)
        training = None if self.training is None else replace(self.training, iterations=1, warm_up=1)
        # A different text, so that results of both do not mix in one directory.
        text = f"# In miniature.\n{self.text}"
        return replace(self, name=f"{self.name}-miniature", text=text, replay=replay, training=training, _plans={})

    def as_described(self) -> Experiment:
        """The same cells on real hosts: not shrunk, with the buffers that Linux has by default."""
        return replace(self, replay=replace(self.replay, shrink=1.0), emulated=False, _plans={})

    def plan(self, cell: Cell) -> Plan:
        """The plan of a cell's strategy for its model; shrunk.

        Raises:
            HostlibError, SimulationError: there is no such model or trace, or too little is known of it.
        """
        subject = self.subject(cell)
        key = cell.model, cell.mechanism, cell.workers, cell.collective
        if key not in self._plans:
            plan = subject.plan(cell.choice, cell.workers)
            self._plans[key] = plan.scaled(1 / self.replay.shrink)
        return self._plans[key]

    def workload(self, cell: Cell) -> Workload:
        """The workload of one of a cell's workers in an iteration; tensors shrunk, times undilated.

        Raises:
            HostlibError, SimulationError: see plan.
        """
        return self.bucketed(self.plan(cell))

    def bucketed(self, plan: Plan) -> Workload:
        """A plan's workload, with gradients in buckets as the file says."""
        return of_plan(plan, bucket_bytes=round(self.replay.bucket_bytes / self.replay.shrink))

    def _subject(self, name: str) -> WorkloadSource:
        replay = self.replay
        if is_trace(name):
            return replace(recorded(Path(name)), batch=replay.batch)
        if name[:1].isdigit():
            return WorkloadSource(trace_of_size(_size(name)), (), replay.batch, 0)
        return model(name, Compute(replay.batch, tflops=replay.tflops), replay.pixels)

    def mechanism(self, cell: Cell) -> Mechanism:
        """The mechanism that sums a cell's gradients."""
        return cell.choice.mechanism

    def hosts(self, cell: Cell) -> tuple[int, int]:
        """Workers and servers of the network that a cell shares with others that have as many workers and jobs."""
        alike = [each for each in self.cells if (each.workers, each.jobs) == (cell.workers, cell.jobs)]
        servers = max(each.choice.hosts for each in alike)
        return cell.workers * cell.jobs, servers * cell.jobs

    def declared(self, cell: Cell) -> Topology:
        """A cell's network, undilated. Links are slower by the factor by which tensors are smaller; delays stay.

        Raises:
            TopologyError: it is impossible.
        """
        table = dict(self.topology)
        if cell.loss:
            table["loss"] = cell.loss
        if cell.delay is not None:
            table["delay"] = cell.delay
        return declare(table, *self.hosts(cell), self.rate_bits_s(cell))

    def rate_bits_s(self, cell: Cell) -> float:
        """Bandwidth of a cell's hosts' links, slower by the factor by which tensors are smaller."""
        return units.bandwidth(cell.bandwidth) / self.replay.shrink

    def subject(self, cell: Cell) -> WorkloadSource:
        """What a cell trains; unshrunk.

        Raises:
            HostlibError, SimulationError: there is no such model or trace.
        """
        if cell.model not in self._subjects:
            self._subjects[cell.model] = self._subject(cell.model)
        return replace(self._subjects[cell.model], collective=cell.does)


def is_trace(model: str) -> bool:
    """Whether a cell's model is the path of a trace."""
    return model.endswith(".trace") or "/" in model


# ---- files ---------------------------------------------------------------------------------------------------------


def read_experiment(path: Path) -> Experiment:
    """Read an experiment's file.

    Raises:
        ExperimentError: it cannot be read, has an unknown key, or an illegal value.
    """
    text, file = read_file(path)
    try:
        return _experiment(path, text, file)
    except (SimulationError, HostlibError) as error:
        raise ExperimentError(f"{path}: {error}") from None


def _experiment(path: Path, text: str, file: ExperimentFile) -> Experiment:
    experiment = Experiment(
        path,
        path.stem,
        "".join(filter(str.isprintable, path.stem if file.title is None else file.title)),
        text,
        _cells(file.cells),
        file.topology,
        _replay(file.replay),
        file.seed,
        None if file.training is None else Training(**file.training.model_dump()),
        recommended=file.recommended,
    )
    for cell in experiment.cells:
        cell.choice.require_workers(cell.workers)
    for cell in {(each.workers, each.jobs, each.bandwidth, each.delay): each for each in experiment.cells}.values():
        experiment.declared(cell)
    _require_bare(experiment)
    if "slots" in file.cells.model_fields_set:
        if experiment.training is not None:
            raise ExperimentError("cells.slots is of replayed models: real training has slots of its own")
        for cell in experiment.cells:
            require_slots(cell)
    if experiment.training is not None:
        return experiment
    for cell in {(each.model, each.mechanism): each for each in experiment.cells}.values():
        experiment.workload(cell)
    return experiment


def _cells(table: CellsTable) -> tuple[Cell, ...]:
    mechanisms = _runnable() if table.mechanisms is None else table.mechanisms
    for mechanism in mechanisms:
        choose(mechanism)
    for bandwidth in table.bandwidths:
        units.bandwidth(bandwidth)
    delays: list[str | None] = [None] if table.delays is None else [*table.delays]
    # Cells of one network are adjacent, so that it is set up once.
    combined = product(
        dict.fromkeys(table.workers),
        dict.fromkeys(table.bandwidths),
        dict.fromkeys(table.loss),
        dict.fromkeys(delays),
        dict.fromkeys(table.jobs),
        dict.fromkeys(table.models),
        dict.fromkeys(table.slots),
        [find_collective(name).value for name in dict.fromkeys(table.collectives)],
        dict.fromkeys(mechanisms),
    )
    return tuple(
        Cell(model, mechanism, bandwidth, workers, float(loss), jobs, slots, delay, collective)
        for workers, bandwidth, loss, delay, jobs, model, slots, collective, mechanism in combined
    )


def require_slots(cell: Cell) -> None:
    """Check that a switch has the slots that all jobs of a cell ask for together.

    Raises:
        ExperimentError: it has fewer, or the number is not a power of two.
    """
    if cell.slots & (cell.slots - 1):
        raise ExperimentError(f"cells.slots must be powers of two, not {cell.slots}")
    choice = cell.choice
    workers = cell.workers // choice.strategy.stages
    needed = choice.strategy.stages * sum(_slots(cell, choice.mechanism.of(each), workers) for each in cell.kinds)
    if cell.jobs * needed > constants.SLOTS:
        raise ExperimentError(
            f"{cell.name} needs {cell.jobs * needed} slots of each switch, which has {constants.SLOTS}"
        )


def _slots(cell: Cell, mechanism: Mechanism, workers: int) -> int:
    """What a job of one collective asks for. Raises ExperimentError: that is too little for its streams."""
    use = mechanism.fabric_use
    if use not in STREAMS:
        return 0 if use is None else cell.slots
    streams = max(mechanism.channels, 1) if mechanism.servers else workers
    each = slots_of_stream(streams, cell.slots)
    if not each:
        raise ExperimentError(f"{cell.name}: {cell.slots} slots are too few for {streams} {STREAMS[use]}")
    return streams * each


def _require_bare(experiment: Experiment) -> None:
    """Check that collectives other than all-reduces are of bare tensors. Raises ExperimentError: they are not."""
    for cell in experiment.cells:
        if cell.does is Collective.ALL_REDUCE:
            continue
        if experiment.training is not None or not cell.model[:1].isdigit():
            raise ExperimentError(
                f"cells.collectives: {cell.collective} is of a size in cells.models, not of {cell.model}"
            )
        if cell.choice.strategy.plain != DEFAULT_STRATEGY:
            raise ExperimentError(f"{cell.mechanism} is a training strategy: {cell.collective} takes a mechanism alone")


def _size(text: str) -> int:
    """Bytes of a model that is a single all-reduce.

    Raises:
        QuantityError: not a size.
        ExperimentError: not above 0.
    """
    size = units.size(text)
    if size < 1:
        raise ExperimentError(f"cells.models: {text} is not a size of at least 1 byte")
    return size


def _runnable() -> list[str]:
    return [name for name, mechanism in registered().items() if mechanism.build is not None and mechanism.runs_on_hosts]


def _replay(table: ReplayTable) -> Replay:
    values = table.model_dump(exclude={"bucket"}, exclude_none=True)
    return Replay(**values, bucket_bytes=units.size(table.bucket))
