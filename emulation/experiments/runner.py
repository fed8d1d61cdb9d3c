"""`emulation run`: run every cell of an experiment on its network, and write a directory of results."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from controller.switches.program import build_dir
from emulation.errors import EmulationError
from emulation.experiments.cell import REPLAY, TRAINING, measure_cell
from emulation.experiments.measurement import Measured
from emulation.experiments.real_hosts import RealHosts, measure_on
from emulation.experiments.run_directory import earlier_record, earlier_rows
from emulation.experiments.validity import bottleneck
from emulation.experiments.worker_options import REPLAYED
from emulation.networks.realise import NetworkKind, RunningNetwork, SwitchKind, realise
from hostlib.errors import HostlibError
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.schedules.contract import Collective
from hostlib.system.machine import cpu_name, memory_gib
from hostlib.system.process import write_whole
from hostlib.text import units
from hostlib.topology.topology import QUEUE_FRAMES
from hostlib.train import local
from hostlib.train.options import TrainOptions
from simulation.experiments.experiment_file import Cell, Experiment, require_slots
from simulation.predictors.predictor import DEFAULT_PREDICTOR, PredictorSpec, find_predictor

READY = Path(__file__).parent / "ready"
# bits per second that all switches together can certainly forward here; an automatic dilation stays below it
CAPACITY_BITS_S = {SwitchKind.EMBEDDED: 300e6, SwitchKind.BMV2: 60e6, SwitchKind.TOFINO_MODEL: 1e6}
# An automatic dilation makes an iteration at least this long: wake-ups are some ms late, whatever is emulated.
LEAST_ITERATION_S = 4.0
# ... but a host's link no slower than this: full queues would take as long as a rank is patient with its switch.
LEAST_LINK_BITS_S = 16e6
MOST_TRIES = 3  # with increasing dilations

Row = dict[str, Any]


def _typed() -> str:
    """The command line, with the program's name."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return shlex.join([name, *sys.argv[1:]])


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an experiment is run.

    Attributes:
        dilation: overrides the experiment's; None for that.
        auto_dilate: repeat a cell with a larger dilation while the machine is too slow for it.
        only: cells with this text in their name.
        real: real hosts; None for virtual ones.
        predictor: predicts each cell's time, by name.
        keep_going: a cell that fails is reported and left without results, instead of ending the run.
    """

    output: Path
    how: NetworkKind = NetworkKind.NETNS
    switch: SwitchKind = SwitchKind.EMBEDDED
    dilation: float | None = None
    auto_dilate: bool = False
    only: str = ""
    real: RealHosts | None = None
    predictor: str = DEFAULT_PREDICTOR
    keep_going: bool = False
    command: str = field(default_factory=_typed)

    def repeats(self, row: Row) -> bool:
        """Whether a cell with this row is run again, more slowly."""
        if row["valid"] or row["enough_dilation"] is None or self.real is not None:
            return False
        return self.auto_dilate or (self.dilation or 0) > row["dilation"]


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The settings of a network, which cells may share."""

    workers: int
    bandwidth: str
    loss: float
    delay: str | None
    jobs: int
    dilation: float


def ready_experiments() -> dict[str, Path]:
    """netfold's own experiments, by name."""
    return {path.stem: path for path in sorted(READY.glob("*.toml"))}


def find_experiment(named: str) -> Path:
    """Path of a file, or of a ready experiment.

    Raises:
        EmulationError: there is neither.
    """
    if named in ready_experiments():
        return ready_experiments()[named]
    if not Path(named).is_file():
        ready = ", ".join(ready_experiments())
        raise EmulationError(f"{named} is neither a file nor a ready experiment; those are {ready}")
    return Path(named)


class ExperimentRun:
    """An experiment and its directory.

    Args:
        report: called with {"event": "cell" | "again" | "row" | "failed", "cell": name, ...}.

    Raises:
        EmulationError: it cannot be run with these options, or the directory holds something else, or is broken.
        ExperimentError: a switch has too few slots for all jobs of a cell.
        UnknownNameError, SpecError: see find_predictor.
    """

    def __init__(self, experiment: Experiment, options: RunOptions, report: Callable[[Row], None]) -> None:
        self.experiment, self.options, self._report = experiment, options, report
        self._predictor = find_predictor(options.predictor)
        self._lengths: dict[str, float] = {}
        self.cells = [cell for cell in experiment.cells if options.only in cell.name]
        if not self.cells:
            raise EmulationError(f"no cell of {experiment.name} has {options.only!r} in its name")
        for cell in self.cells:
            choice = cell.choice
            choice.mechanism.require_hosts()
            if choice.mechanism.one_host and options.real is None:
                raise EmulationError(
                    f"{cell.mechanism} is for workers of one host, and here each has one of its own: leave it out, or "
                    "name a mechanism that sends messages"
                )
            if cell.does not in REPLAYED:
                legal = ", ".join(map(str, REPLAYED))
                raise EmulationError(
                    f"{cell.name}: {cell.collective} can be simulated, not replayed; legal are {legal}"
                )
            if cell.does is not Collective.ALL_REDUCE and choice.mechanism.servers:
                raise EmulationError(f"{cell.name}: servers serve all-reduces only; leave it out")
            if experiment.training is not None:
                TrainOptions(model=cell.model, data=experiment.training.data)
            past = choice.mechanism.sends_messages or choice.strategy.own_messages
            if options.real is None:
                require_slots(cell)
            # Real training is not timed by these networks' links, so loopback is as good a place for it.
            if options.real is None and past and experiment.training is None:
                options.how.require_streams(cell.mechanism)
        self.rows = self._earlier_rows()
        if options.real is None:
            self._declare_networks()

    def _declare_networks(self) -> None:
        """Check all networks before the first one is made, or listed.

        Raises:
            EmulationError: one of them is impossible, or cannot be made here.
        """
        for settings, cells in groupby(self.cells, lambda cell: self._settings(cell, self.dilation(cell))):
            try:
                self.experiment.declared(next(cells)).dilated(settings.dilation)
            except HostlibError as error:
                raise EmulationError(f"{self.experiment.path}: {error}") from None

    @property
    def left(self) -> list[Cell]:
        """The cells without results, and those that were not valid, if they can run more slowly now."""
        rows = self.rows
        return [cell for cell in self.cells if cell.name not in rows or self.options.repeats(rows[cell.name])]

    def dilation(self, cell: Cell) -> float:
        """The dilation of a cell's first attempt."""
        if self.options.real is not None or self.experiment.training is not None:
            return 1.0
        if self.options.dilation is not None:
            return self.options.dilation
        if cell.name in self.rows and self.options.repeats(self.rows[cell.name]):
            return float(self.rows[cell.name]["enough_dilation"])
        if self.experiment.replay.dilation:
            return self.experiment.replay.dilation
        passes = 2 * len(self.experiment.declared(cell).tree.levels()) - 1  # of a frame, up to the root and down again
        together = passes * cell.workers * cell.jobs * self.experiment.rate_bits_s(cell)
        return max(1.0, math.ceil(together / CAPACITY_BITS_S[self.options.switch]), self._long_enough(cell))

    def _long_enough(self, cell: Cell) -> float:
        """The dilation at which an iteration takes LEAST_ITERATION_S, rounded up, so that many cells share a network."""
        if cell.name not in self._lengths:
            predicted = self._predictor.of_cell(self.experiment, cell)
            times = 1.0 if predicted is None else LEAST_ITERATION_S / predicted.iteration_s
            power = 2 ** math.ceil(math.log2(max(1.0, times)))
            rounded = power if times > 0.75 * power else 0.75 * power
            slowest = units.bandwidth(cell.bandwidth) / self.experiment.replay.shrink / LEAST_LINK_BITS_S
            self._lengths[cell.name] = min(rounded, math.floor(slowest))
        return self._lengths[cell.name]

    @property
    def preloaded(self) -> tuple[str, ...]:
        """What the process that forks the ranks imports for them."""
        if self.experiment.training is None:
            return (REPLAY, local.PRELOAD)
        return (TRAINING, *local.TRAINING)

    def go(self, forks: ForkServer | None = None) -> list[Row]:
        """Run the remaining cells; returns all rows, in the experiment's order.

        Args:
            forks: forks the ranks; None for one of this run's own.

        Raises:
            EmulationError, HostlibError: a network could not be made, a worker died, or another run uses the directory.
                Earlier results are kept.
        """
        with alone(self.options.output):
            self.rows = self._earlier_rows()  # another run may have ended in the meantime
            return self._go(forks)

    def _earlier_rows(self) -> dict[str, Row]:
        return earlier_rows(self.options.output, self.experiment.text, self.options.predictor)

    def _go(self, forks: ForkServer | None) -> list[Row]:
        self._begin()
        if self.options.real is not None:
            for cell in self.left:
                self._report({"event": "cell", "cell": cell.name, "dilation": 1.0})
                with self._failures([cell]):
                    measured = measure_on(self.options.real, self.experiment, cell)
                    self._keep(row_of(self.experiment, cell, 1.0, measured, self._predictor), detail_of(cell, measured))
        elif self.left:
            with fork_server(*self.preloaded) if forks is None else nullcontext(forks) as running:
                for settings, cells in groupby(self.left, lambda cell: self._settings(cell, self.dilation(cell))):
                    self._on(settings, list(cells), running)
        self._end()
        return self.ordered

    @contextmanager
    def _failures(self, waiting: list[Cell]) -> Iterator[None]:
        """Report a failure in the block, which is the first cell's, and drop that cell, if the run is to keep going."""
        try:
            yield
        except (EmulationError, HostlibError) as error:
            if not self.options.keep_going:
                raise
            self._report({"event": "failed", "cell": waiting.pop(0).name, "why": str(error)})

    def _settings(self, cell: Cell, dilation: float) -> NetworkSettings:
        return NetworkSettings(cell.workers, cell.bandwidth, cell.loss, cell.delay, cell.jobs, dilation)

    def _on(self, settings: NetworkSettings, cells: list[Cell], forks: ForkServer) -> None:
        slow = []
        waiting = list(cells)
        while waiting:  # after a failure, on a new network: the old one may be broken
            with self._failures(waiting), self._network(cells[0], settings.dilation) as fabric:
                while waiting:
                    cell = waiting[0]
                    self._report({"event": "cell", "cell": cell.name, "dilation": settings.dilation})
                    row, detail = self._measure(cell, settings.dilation, fabric, forks)
                    if self.options.auto_dilate and row["enough_dilation"] is not None:
                        slow.append((cell, row, detail))
                    else:
                        self._keep(row, detail)
                    waiting.pop(0)
        for cell, row, detail in slow:
            with self._failures([cell]):
                self._keep(*self._slower(cell, row, detail, forks))

    def _slower(self, cell: Cell, row: Row, detail: Row, forks: ForkServer) -> tuple[Row, Row]:
        for _ in range(MOST_TRIES):
            if row["valid"] or row["enough_dilation"] is None:
                break
            settings = self._settings(cell, row["enough_dilation"])
            self._report({"event": "again", "cell": cell.name, "dilation": settings.dilation, "why": row["bottleneck"]})
            with self._network(cell, settings.dilation) as fabric:
                row, detail = self._measure(cell, settings.dilation, fabric, forks)
        return row, detail

    def _network(self, cell: Cell, dilation: float) -> AbstractContextManager[RunningNetwork]:
        """A cell's network; the process that forks its workers outlives it."""
        topology = self.experiment.declared(cell).dilated(dilation)
        return realise(topology, self.options.how, self.options.switch, self.experiment.seed)

    def _measure(self, cell: Cell, dilation: float, fabric: RunningNetwork, forks: ForkServer) -> tuple[Row, Row]:
        measured = measure_cell(self.experiment, cell, dilation, fabric, forks)
        return row_of(self.experiment, cell, dilation, measured, self._predictor), detail_of(cell, measured)

    # ---- the directory ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        output = self.options.output
        (output / "cells").mkdir(parents=True, exist_ok=True)
        (output / "experiment.toml").write_text(self.experiment.text)
        self._say(None)

    def _end(self) -> None:
        self._say(_now())

    def _say(self, finished: str | None) -> None:
        path = self.options.output / "run.json"
        earlier = earlier_record(self.options.output)
        record = {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "command": self.options.command,
            "started": _now() if earlier is None else earlier.started,
            "finished": finished,
            "versions": _versions(),
            "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "memory_gib": memory_gib()},
            "seed": self.experiment.seed,
            "realisation": self.options.how.value if self.options.real is None else "hosts",
            "switch": self.options.switch.value if self.options.real is None else None,
            "topology": dict(self.experiment.topology),
            "predictor": self.options.predictor,
            "replay": asdict(self.experiment.replay),
            "training": None if self.experiment.training is None else asdict(self.experiment.training),
        }
        write_whole(path, record)

    def _keep(self, row: Row, detail: Row) -> None:
        write_whole(self.options.output / "cells" / f"{row['cell']}.json", detail)
        self.rows[row["cell"]] = row
        write_whole(self.options.output / "results.json", self.ordered)
        self._report({"event": "row", **row})

    @property
    def ordered(self) -> list[Row]:
        """Results so far, in the experiment's order."""
        return [self.rows[cell.name] for cell in self.experiment.cells if cell.name in self.rows]


def row_of(experiment: Experiment, cell: Cell, dilation: float, measured: Measured, predictor: PredictorSpec) -> Row:
    """A line of results.json; `simulated_ms` is the predictor's time."""
    cables = experiment.declared(cell).cables
    random = any(cable.loss for cable in cables) or experiment.training is not None
    drops = any(cable.loss or cable.queue < QUEUE_FRAMES or cable.mark for cable in cables)
    found = bottleneck(measured, dilation, random, drops)
    why = None if found is None else found.why
    if found is not None and experiment.training is not None and measured.lack is not None:
        why = f"{found.why.rpartition(': ')[0]}: real training needs real hosts (--hosts)"
    dilated = replace(experiment, replay=replace(experiment.replay, dilation=dilation))
    simulated = predictor.of_cell(dilated, cell, interval=True)
    return {
        "cell": cell.name,
        "model": cell.short_model,
        "mechanism": cell.mechanism,
        "workers": cell.workers,
        "bandwidth": cell.bandwidth,
        "jobs": cell.jobs,
        "loss": cell.loss,
        "slots": cell.slots,
        "delay": cell.delay,
        "collective": cell.collective,
        "dilation": dilation,
        "iteration_ms": measured.iteration_ms,
        "iteration_ms_spread": measured.spread_ms,
        "simulated_ms": None if simulated is None else simulated.iteration_s * 1e3,
        "simulated_low_ms": None if simulated is None or simulated.low_s is None else simulated.low_s * 1e3,
        "simulated_high_ms": None if simulated is None or simulated.high_s is None else simulated.high_s * 1e3,
        "valid": found is None,
        "cause": None if found is None else found.cause.value,
        "bottleneck": why,
        "enough_dilation": None if found is None or experiment.training is not None else found.dilation,
        "bytes_per_node": {name: link for name, link in measured.links.items() if name[-1].isdigit()},
        "retransmits": measured.retransmits,
        "marked": measured.marked,
        "again": round(measured.again, 5),
        "cpu": {name: round(share, 3) for name, share in measured.cpu.items()},
        "late": round(measured.late, 5),
        "latest": round(measured.latest, 5),
        "lacked": None if measured.lack is None else measured.lack.as_json(),
        "peak_memory_bytes": measured.peak_memory_bytes,
    }


def detail_of(cell: Cell, measured: Measured) -> Row:
    """The contents of cells/CELL.json."""
    return {
        "cell": cell.name,
        "iterations_ms": measured.iterations_ms,
        "timeline": measured.timeline,
        "links": measured.links,
        "engines": measured.engines,
    }


def go_first() -> None:
    """Give this process, and those that it starts, the cores before all processes without real-time priority: sched(7).

    Raises:
        EmulationError: this process may not.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except PermissionError:
        raise EmulationError("--real-time needs root, or the capability CAP_SYS_NICE") from None


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Lock the directory: each run writes all of results.json, and would overwrite another run's results."""
    output.mkdir(parents=True, exist_ok=True)
    held = os.open(output, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EmulationError(f"another run is at work in {output}: wait for it, or name another --output") from None
        yield
    finally:
        os.close(held)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("netfold", "torch", "numpy")}
    lock = json.loads((build_dir() / "lock.json").read_text())
    return {**packages, "python": platform.python_version(), "linux": platform.release(), "p4 compiler": lock["p4c"]}
