"""A selection of the suite's cells, and the experiment files that describe them.

Cells of a data set and a network that have as many workers and as large a batch share a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any

from emulation.errors import EmulationError
from emulation.suite.catalogue import DATASETS, NETWORKS, SuiteDataset, find_framework
from hostlib.datasets.dataset import TEST_EVERY, examples_for
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.strategies.strategy import choose
from hostlib.text import units
from hostlib.train.options import TrainOptions
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import Cell, require_slots
from simulation.experiments.tables import MOST
from simulation.models.compute import Compute
from simulation.models.workload_source import WorkloadSource, model


class Way(Enum):
    """How cells get their times."""

    SIMULATE = "simulate"  # played in virtual time
    REPLAY = "replay"  # real packets; workers compute by waiting
    TRAIN = "train"  # a few batches of real training


@dataclass(frozen=True, slots=True)
class SuiteCell:
    """A cell of the suite.

    Attributes:
        framework: as selected.
        mechanism: what the experiment's cell names.
        batch: examples of a worker and iteration.
    """

    dataset: str
    network: str
    framework: str
    mechanism: str
    workers: int
    bandwidth: str
    batch: int

    @property
    def model(self) -> str:
        return f"{self.network}:variant={self.dataset}"

    @property
    def cell(self) -> Cell:
        """The experiment's cell."""
        return Cell(self.model, self.mechanism, self.bandwidth, self.workers)

    @property
    def name(self) -> str:
        """Unique in a selection."""
        return self.cell.name

    @property
    def file(self) -> str:
        """Base name of its experiment file."""
        return f"{self.dataset}-{self.network}-{self.workers}w-batch{self.batch}"

    @property
    def images_per_iteration(self) -> int:
        return self.workers * self.batch

    @property
    def epoch_iterations(self) -> float:
        """Iterations of an epoch; the last one may be a part."""
        return DATASETS[self.dataset].images / self.images_per_iteration


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cells, and how they get their times.

    Attributes:
        workers: numbers of them, each at least 2; sequential training is added as it is selected.
        batch: examples of a worker, instead of the data set's.
        tflops: rate at which workers compute, if they do not train.
        shrink: see Replay.
        data: data sets with their folders of files, `cifar10:FOLDER`; the others are synthetic.
        gpu_memory: of each worker, as `24GB`; None: simulated cells fit.

    Raises:
        UnknownNameError: there is no such data set, network or framework.
        EmulationError: a number is illegal, or data are named that nothing reads.
        HostlibError: an option, the bandwidth or the memory is illegal.
    """

    datasets: tuple[str, ...]
    networks: tuple[str, ...]
    frameworks: tuple[str, ...]
    workers: tuple[int, ...] = (4,)
    bandwidth: str = "40gbit"
    way: Way = Way.SIMULATE
    tflops: float = 10.0
    batch: int | None = None
    iterations: int = 3
    warm_up: int = 1
    shrink: float = 32.0
    data: tuple[str, ...] = ()
    seed: int = 1
    gpu_memory: str | None = None

    def __post_init__(self) -> None:
        for flag in ("datasets", "networks", "frameworks", "workers"):
            if not getattr(self, flag):
                raise EmulationError(f"--{flag} must name at least one")
        for kind, names, legal in (("data set", self.datasets, DATASETS), ("network", self.networks, NETWORKS)):
            for name in names:
                if name not in legal:
                    raise UnknownNameError(kind, name, legal)
        for name in self.frameworks:
            find_framework(name)
        units.bandwidth(self.bandwidth)
        for flag, least, values in (
            ("--workers", 2, self.workers),
            ("--batch", 1, () if self.batch is None else (self.batch,)),
            ("--iterations", 1, (self.iterations,)),
            ("--warm-up", 1, (self.warm_up,)),
            ("--shrink", 1, (self.shrink,)),
        ):
            for value in values:
                if not value >= least:
                    raise EmulationError(f"{flag} must be at least {least}, not {value:g}")
                if value > MOST:
                    raise EmulationError(f"{flag} must be at most {MOST}, not {value:g}")
        Compute(tflops=self.tflops)
        if self.data and self.way is not Way.TRAIN:
            raise EmulationError(f"--data {self.data[0]} is of --way train: the other ways read no images")
        if self.gpu_memory is not None and self.way is not Way.SIMULATE:
            raise EmulationError(f"--gpu-memory {self.gpu_memory} is of --way simulate: the other ways have no GPU")
        if self.memory_bytes == 0:
            raise EmulationError(f"--gpu-memory must be at least 1 byte, not {self.gpu_memory}")
        for text in self.data:
            name, _, folder = text.partition(":")
            if name not in self.datasets:
                raise UnknownNameError("data set", name, self.datasets)
            if not folder:
                raise EmulationError(f"--data {text} needs the folder that its files are in: {text}:FOLDER")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.gpu_memory is None else units.size(self.gpu_memory, "--gpu-memory")

    def folder(self, dataset: str) -> str | None:
        """The folder of a data set's files; None if its images are synthetic."""
        folders = dict(text.split(":", 1) for text in self.data)
        return folders.get(dataset)

    def all_cells(self) -> Iterator[SuiteCell]:
        """All cells, those that cannot run included."""
        found: dict[str, SuiteCell] = {}
        for dataset, network, framework in product(self.datasets, self.networks, self.frameworks):
            for cell in self._of(DATASETS[dataset], network, framework):
                found.setdefault(cell.name, cell)
        yield from found.values()

    def _of(self, dataset: SuiteDataset, network: str, name: str) -> Iterator[SuiteCell]:
        framework = find_framework(name)
        batch = self.batch or framework.batch(dataset)
        for workers in (1,) if framework.is_sequential else dict.fromkeys(self.workers):
            mechanism = framework.mechanism(dataset, workers, self.batch is None)
            yield SuiteCell(dataset.name, network, name, mechanism, workers, self.bandwidth, batch)

    def cells(self) -> tuple[list[SuiteCell], dict[str, str]]:
        """The cells that can run, and why the others cannot, by name."""
        subjects: dict[tuple[str, int], WorkloadSource] = {}
        can, cannot = [], {}
        for cell in self.all_cells():
            try:
                key = cell.model, cell.batch
                if key not in subjects:
                    subjects[key] = model(cell.model, Compute(cell.batch, tflops=self.tflops))
                self._require_possible(cell, subjects[key])
            except (EmulationError, HostlibError, SimulationError) as error:
                cannot[cell.name] = str(error)
            else:
                can.append(cell)
        return can, cannot

    def _require_possible(self, cell: SuiteCell, subject: WorkloadSource) -> None:
        choice = choose(cell.mechanism)
        choice.mechanism.require_hosts()
        if choice.mechanism.one_host:
            raise EmulationError(f"{cell.mechanism} is for workers of one host, and here each has one of its own")
        if self.way is Way.TRAIN:
            choice.require_workers(cell.workers)
            TrainOptions(cell.mechanism, cell.model, cell.workers)
            return
        require_slots(cell.cell)
        subject.plan(choice, cell.workers)

    def files(self, cells: list[SuiteCell]) -> dict[str, str]:
        """Experiment files by base name, for cells of this selection."""
        grouped: dict[str, list[SuiteCell]] = {}
        for cell in cells:
            grouped.setdefault(cell.file, []).append(cell)
        return {name: self._file(group) for name, group in grouped.items()}

    def _file(self, cells: list[SuiteCell]) -> str:
        first = cells[0]
        table: dict[str, Any] = {"iterations": self.iterations, "warm_up": self.warm_up}
        if self.way is Way.TRAIN:
            kind, own = "training", {"batch_size": first.batch, "data": self._data(first)}
        else:
            kind, own = "replay", {"batch": first.batch, "tflops": float(self.tflops), "shrink": float(self.shrink)}
        plural = "" if first.workers == 1 else "s"
        lines = [
            f'title = "Suite: {first.network} for {first.dataset}, {first.workers} worker{plural}"',
            f"seed = {self.seed}",
            "",
            "[cells]",
            f"models = {json.dumps([first.model])}",
            f"mechanisms = {json.dumps([cell.mechanism for cell in cells])}",
            f"bandwidths = {json.dumps([first.bandwidth])}",
            f"workers = [{first.workers}]",
            "",
            f"[{kind}]",
            *(f"{key} = {json.dumps(value)}" for key, value in (own | table).items()),
        ]
        return "\n".join(lines) + "\n"

    def _data(self, cell: SuiteCell) -> str:
        """The data set's files, or just as many synthetic examples as an iteration needs."""
        folder, examples = self.folder(cell.dataset), examples_for(cell.images_per_iteration)
        reader = DATASETS[cell.dataset].reader
        if folder is None:
            return f"synthetic:examples={examples}"
        return f"{reader}:{folder}" + (f":examples={examples}" if reader == "images" else "")

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps({**asdict(self), "way": self.way.value}))  # type: ignore[no-any-return]


def require_readable(selection: Selection) -> None:
    """Check that the data sets' files can be read. Loads torch if there are any.

    Raises:
        EmulationError: they cannot; the message says what is missing, and how to do without.
    """
    for name in selection.datasets:
        folder, dataset = selection.folder(name), DATASETS[name]
        if folder is None:
            continue
        from hostlib.datasets.image_files import cifar10, mnist
        from hostlib.datasets.image_folder import image_folder

        try:
            if dataset.reader == "images":
                image_folder(folder, dataset.variant.input, dataset.variant.classes, TEST_EVERY, selection.seed)
            else:
                (mnist if dataset.reader == "mnist" else cifar10)(folder)
        except HostlibError as error:
            raise EmulationError(
                f"{error}; without --data {name}:{folder}, synthetic images of the same shape are used"
            ) from None


def write_files(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write experiment files.

    Raises:
        EmulationError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"{name}.toml").write_text(text)
    except OSError as error:
        raise EmulationError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return [folder / f"{name}.toml" for name in files]
