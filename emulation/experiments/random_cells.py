"""Random cells: a sample of the whole space of models, mechanisms and networks, an experiment file for each."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from emulation.errors import EmulationError
from hostlib.strategies.strategy import choose
from hostlib.system.user_file import read_text
from simulation.errors import ExperimentError
from simulation.experiments.experiment_file import Cell, require_slots

MODELS = (
    "alexnet", "googlenet", "inception3", "overfeat", "resnet50", "resnet101", "resnet152", "resnet200", "vgg11", "vgg16",
    "vgg19",
)  # fmt: skip
MECHANISMS = (
    "ps",
    "ps:servers=2",
    "ps:servers=4:assign=even",
    "ps:servers=2:assign=pairs",
    "ps:servers=2:colocated",
    "inagg",
    "mcast",
    "inagg+mcast",
    "inagg+mcast:via_server",
    "ring",
    "ring:split=no",
    "ring+mcast",
    "butterfly",
    "halving-doubling",
    "tree",
    "tree:pieces=2",
    "hybcomm/ring",
    "sfb/inagg+mcast",
)
WORKERS = (2, 12)  # of a job
GBIT_S = (5, 100)  # of a host's link; logarithmically uniform
LEAVES = (2, 4)
OVERSUBSCRIPTION = (1.0, 4.0)
JOBS = (1, 3)
MOST_RANKS = 24  # of a cell, servers included: two cores run no more of them at a useful dilation
SHRINK, ITERATIONS = 64, 3


@dataclass(frozen=True, slots=True)
class RandomCell:
    """A cell of a sample.

    Attributes:
        leaves: of a leaf-spine network; None for a star.
        oversubscription: of its uplinks.
    """

    model: str
    mechanism: str
    workers: int
    gbit_s: int
    jobs: int
    leaves: int | None
    oversubscription: float

    @property
    def is_possible(self) -> bool:
        """Whether it has few enough ranks, a worker for each leaf, and slots on the switches for all jobs."""
        try:
            require_slots(Cell(self.model, self.mechanism, f"{self.gbit_s}gbit", self.workers, jobs=self.jobs))
        except ExperimentError:
            return False
        ranks = (self.workers + choose(self.mechanism).servers) * self.jobs
        return ranks <= MOST_RANKS and (self.leaves or 1) <= self.workers * self.jobs

    def file(self, title: str) -> str:
        """The experiment file."""
        return f"""title = "{title}"
seed = 1

[cells]
models = ["{self.model}"]
mechanisms = ["{self.mechanism}"]
bandwidths = ["{self.gbit_s}gbit"]
workers = [{self.workers}]
jobs = [{self.jobs}]

[topology]
{network_table(self.leaves, self.oversubscription)}

[replay]
shrink = {SHRINK}
iterations = {ITERATIONS}
"""


def network_table(leaves: int | None, oversubscription: float) -> str:
    """Lines of an experiment's table `topology`; see RandomCell."""
    if leaves is None:
        return 'kind = "star"'
    return f'kind = "leaf-spine"\nleaves = {leaves}\noversubscription = {oversubscription}'


def log_uniform(source: random.Random, least: float, most: float) -> float:
    return float(least * (most / least) ** source.random())


def random_cells(seed: int) -> Iterator[RandomCell]:
    """Draw cells without end, always the same ones for a seed; each choice is uniform, the bandwidth logarithmically."""
    source = random.Random(seed)
    while True:
        cell = RandomCell(
            source.choice(MODELS),
            source.choice(MECHANISMS),
            source.randint(*WORKERS),
            round(log_uniform(source, *GBIT_S)),
            source.randint(*JOBS),
            source.choice((None, source.randint(*LEAVES))),
            round(source.uniform(*OVERSUBSCRIPTION), 1),
        )
        if cell.is_possible:
            yield cell


def write_sample(seed: int, cells: int, folder: Path) -> list[Path]:
    """Write an experiment file for each of a seed's first cells; those that are there already stay.

    Raises:
        EmulationError: the folder has other files of these names, or cannot be written.
    """
    drawn = enumerate(islice(random_cells(seed), cells), start=1)
    texts = {f"cell{number:02}": cell.file(f"Random cell {number} of seed {seed}") for number, cell in drawn}
    return write_files(texts.items(), folder)


def write_files(texts: Iterable[tuple[str, str]], folder: Path) -> list[Path]:
    """Write experiment files by their names; those that are there already stay.

    Raises:
        EmulationError: the folder has other files of these names, or cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts:
            path = folder / f"{name}.toml"
            if path.exists() and read_text(path) != text:
                raise EmulationError(f"{path} is of another sample: name another --output")
            path.write_text(text)
            written.append(path)
    except UnicodeDecodeError:
        raise EmulationError(f"{path} is of another sample: name another --output") from None
    except OSError as error:
        raise EmulationError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return written
