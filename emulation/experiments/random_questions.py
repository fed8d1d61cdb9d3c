"""Random questions: what the recommender names for a model on a network, and other plans beside it.

Each question is an experiment, so that the recommended plan's regret can be measured: how much longer it takes than the
best plan. Plans with other bucket sizes or numbers of slots are in files of their own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from emulation.experiments.random_cells import (
    GBIT_S,
    LEAVES,
    MOST_RANKS,
    OVERSUBSCRIPTION,
    log_uniform,
    network_table,
    write_files,
)
from emulation.experiments.runner import LEAST_ITERATION_S, LEAST_LINK_BITS_S
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.strategies.strategy import choose
from simulation.answers.question import names_of
from simulation.errors import ExperimentError
from simulation.experiments.experiment_file import Cell, require_slots
from simulation.experiments.scenario import BUCKET_BYTES, Scenario
from simulation.models.compute import Compute
from simulation.models.workload_source import model
from simulation.recommendation.candidate import Candidate
from simulation.recommendation.search import SearchSpace, search
from simulation.simulator.network import Network

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODELS = ("gpt2", "inception3", "mobilenet2", "resnet18", "resnet50", "resnet152", "vgg11", "vgg16")
WORKERS = (2, 4, 6, 8)
BATCHES = (8, 16, 32)
TFLOPS = (10, 200)  # of a worker; logarithmically uniform, as bandwidths are
ITERATIONS = 2
MOST_SHRINK = 64
BUCKETS = (5 << 20, 100 << 20)  # that are searched, beside DDP's
SLOTS = (constants.SLOTS // 2, constants.SLOTS)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the recommender.

    Attributes:
        leaves: of a leaf-spine network; None for a star.
        oversubscription: of its uplinks.
    """

    model: str
    workers: int
    gbit_s: int
    tflops: int
    batch: int
    leaves: int | None
    oversubscription: float

    @property
    def base(self) -> Scenario:
        """Its cell, with any mechanism."""
        table = tomllib.loads(network_table(self.leaves, self.oversubscription))
        subject = model(self.model, Compute(self.batch, tflops=self.tflops))
        return Scenario(subject, "ring", self.workers, Network(self.gbit_s * 1e9, declaration=table))

    def plans(self, others: int) -> tuple[Candidate, list[Candidate]]:
        """The recommended plan; and it, the other finalists and the next fastest, up to so many others that differ in
        more than a number.

        Raises:
            SimulationError, HostlibError: no plan can be played.
        """
        space = SearchSpace(self.base, names_of(()), True, True, BUCKETS, SLOTS)
        found = search(space, {}, self.tflops)
        chosen = found.recommended or found.finalists[0]
        plans = {_kind(chosen): chosen}
        for each in sorted(found.candidates, key=lambda each: (not each.finalist, each.iteration_ms)):
            if len(plans) <= others and self.can_run(each):
                plans.setdefault(_kind(each), each)
        return chosen, list(plans.values())

    def can_run(self, plan: Candidate) -> bool:
        """Whether the emulation has the ranks and the switches the slots for it."""
        ranks = self.workers + choose(plan.name).servers
        try:
            require_slots(Cell(self.model, plan.name, f"{self.gbit_s}gbit", self.workers, slots=plan.slots))
        except ExperimentError:
            return False
        return ranks <= MOST_RANKS

    def files(self, title: str, others: int) -> dict[str, str]:
        """Experiment files by the ending of their names: the first has the settings by default."""
        chosen, plans = self.plans(others)
        fastest_s = min(each.iteration_ms for each in plans) / 1e3
        # Slower by shrink, and by the dilation that makes iterations long enough, links are still fast enough.
        most = self.gbit_s * 1e9 / LEAST_LINK_BITS_S * fastest_s / LEAST_ITERATION_S
        shrink = max(1, min(MOST_SHRINK, int(most)))
        texts = {}
        for bucket, slots in sorted({(each.bucket_bytes, each.slots) for each in plans}):
            mechanisms = [each.name for each in plans if (each.bucket_bytes, each.slots) == (bucket, slots)]
            ending = "" if (bucket, slots) == (BUCKET_BYTES, SLOTS_PER_POOL) else f"-{bucket >> 20}MiB-{slots}slots"
            named = f'recommended = "{chosen.name}"\n' if (chosen.bucket_bytes, chosen.slots) == (bucket, slots) else ""
            texts[ending] = f"""title = "{title}"
seed = 1
{named}
[cells]
models = ["{self.model}"]
mechanisms = [{", ".join(f'"{name}"' for name in mechanisms)}]
bandwidths = ["{self.gbit_s}gbit"]
workers = [{self.workers}]
slots = [{slots}]

[topology]
{network_table(self.leaves, self.oversubscription)}

[replay]
shrink = {shrink}
iterations = {ITERATIONS}
bucket = "{bucket >> 20}MiB"
batch = {self.batch}
tflops = {self.tflops}
"""
        return texts


def _kind(plan: Candidate) -> tuple[str, str]:
    choice = choose(plan.name)
    return choice.strategy.plain, choice.mechanism.name.partition(":")[0]


def random_questions(seed: int) -> Iterator[Question]:
    """Draw questions without end, always the same ones for a seed; each choice is uniform, rates logarithmically."""
    source = random.Random(seed)
    while True:
        question = Question(
            source.choice(MODELS),
            source.choice(WORKERS),
            round(log_uniform(source, *GBIT_S)),
            round(log_uniform(source, *TFLOPS)),
            source.choice(BATCHES),
            source.choice((None, source.randint(*LEAVES))),
            round(source.uniform(*OVERSUBSCRIPTION), 1),
        )
        if (question.leaves or 1) <= question.workers:
            yield question


def write_questions(seed: int, questions: int, others: int, folder: Path, tell: Callable[[str], None]) -> list[Path]:
    """Write the experiment files of a seed's first questions; those that are there already stay.

    Args:
        others: plans beside the recommended one.
        tell: takes a line of progress.

    Raises:
        EmulationError: the folder has other files of these names, or cannot be written.
    """
    written = []
    for number, question in enumerate(islice(random_questions(seed), questions), start=1):
        tell(f"question {number} of {questions}")
        texts = question.files(f"Question {number} of seed {seed}", others)
        written += write_files(((f"question{number:02}{ending}", text) for ending, text in texts.items()), folder)
    return written
