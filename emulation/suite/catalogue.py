"""What the suite consists of: data sets with their batches, networks, and the frameworks that are registered.

Source: "Benchmarking and recommender for distributed training", tables 3.2 and 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

from hostlib.errors import UnknownNameError
from hostlib.mechanisms.mechanism import registered
from hostlib.models.zoo.variants import VARIANTS, Variant
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Strategy, choose, parts_of, registered_strategies

SEQUENTIAL = "sequential"  # one worker
SUMS_REPLICAS = "ring"  # where a framework names no mechanism, and a strategy has none between hosts
PIPELINE_STAGES = 4  # table 3.3's batches of pipelines are for 4 GPUs


@dataclass(frozen=True, slots=True)
class SuiteDataset:
    """A data set.

    Attributes:
        name: of its variant of the networks.
        images: of an epoch.
        batch: examples of a worker and iteration.
        pipeline_batch: examples of a pipeline of 4 workers and iteration.
        microbatches: of a pipeline's batch.
        reader: what `hostlib train --data` calls its files.
    """

    name: str
    images: int
    batch: int
    pipeline_batch: int
    microbatches: int
    reader: str = "images"

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.name]


DATASETS = {
    each.name: each
    for each in (
        SuiteDataset("mnist", 70_000, 128, 3072, 24, "mnist"),
        SuiteDataset("cifar10", 60_000, 64, 2048, 32, "cifar10"),
        SuiteDataset("imagenet", 1_280_000, 32, 384, 12),
        SuiteDataset("highres", 60_000, 32, 48, 12),
    )
}
NETWORKS = ("resnet18", "resnet50", "resnet152", "vgg11", "vgg16", "mobilenet2")


@dataclass(frozen=True, slots=True)
class Framework:
    """A way to train on several workers, or on one.

    Attributes:
        name: MECHANISM, STRATEGY or STRATEGY/MECHANISM, with options, or "sequential".
        summary: what it is, in one line.
    """

    name: str
    summary: str

    @property
    def is_sequential(self) -> bool:
        return self.name == SEQUENTIAL

    @property
    def is_pipeline(self) -> bool:
        """Whether workers share a model, by stages."""
        return not self.is_sequential and "stages" in option_names(parts_of(self.name)[0])

    def mechanism(self, dataset: SuiteDataset, workers: int, usual_batch: bool) -> str:
        """What an experiment's cell names: a pipeline has its number of stages, and of micro-batches.

        Args:
            workers: of a pipeline, as many stages, at most four.
            usual_batch: the data set's, whose number of micro-batches is published.
        """
        if self.is_sequential:
            return SUMS_REPLICAS
        if not self.is_pipeline:
            return self.name
        strategy, mechanism = parts_of(self.name)
        sums = mechanism if "/" in self.name else SUMS_REPLICAS
        words = [strategy.name]
        if "stages=" not in strategy.name:
            words.append(f"stages={min(PIPELINE_STAGES, workers)}")
        if usual_batch and "microbatches" in option_names(strategy) and "microbatches=" not in strategy.name:
            words.append(f"microbatches={dataset.microbatches}")
        return f"{':'.join(words)}/{sums}"

    def batch(self, dataset: SuiteDataset) -> int:
        """Examples of a worker and iteration."""
        return dataset.pipeline_batch // PIPELINE_STAGES if self.is_pipeline else dataset.batch


def option_names(strategy: Strategy) -> set[str]:
    """The names of a strategy's options."""
    return {each.name for each in fields(strategy.options)}


@cache
def frameworks() -> dict[str, Framework]:
    """One worker, every mechanism that hosts run by schedules of their own, and every strategy without shards of weights,
    with its paper's mechanism.
    """
    found = [Framework(SEQUENTIAL, "one worker, which is what speed-ups are relative to")]
    found += [
        Framework(name, each.summary)
        for name, each in registered().items()
        if each.build is not None and each.runs_on_hosts and not each.one_host
    ]
    for name, each in registered_strategies().items():
        if name != DEFAULT_STRATEGY and not each.spec.sharded:
            # A paper's mechanism within one host sums nothing between several.
            own = f"{name}/{SUMS_REPLICAS}" if choose(name).mechanism.one_host else name
            found.append(Framework(own, each.summary))
    return {each.name: each for each in found}


def find_framework(name: str) -> Framework:
    """A framework by name; those with options, and other combinations of a strategy and a mechanism, are legal too.

    Raises:
        UnknownNameError: there is no such framework.
        HostlibError: an option is impossible.
    """
    if name in frameworks():
        return frameworks()[name]
    if name.partition("/")[0].partition(":")[0] not in {*frameworks(), *registered(), *registered_strategies()}:
        raise UnknownNameError("framework", name, frameworks())
    choice = choose(name)
    return Framework(name, f"{choice.strategy.summary}; {choice.mechanism.summary}")
