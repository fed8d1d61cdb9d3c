"""Options of the pipelines' strategies, and which worker has which part of which pipeline. Torch-free.

The workers' order is that of their stages: with 2 stages and 6 workers, 0 to 2 have the first stage, 3 to 5 the second,
and 0 and 3 are one pipeline. So a stage's replicas, whose gradients are summed, are neighbours.

A pipeline trains on its workers' examples together: with 2 stages and a batch of 16 for each worker, a pipeline's batch
is 32, and the step is that of data-parallel training with as many workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import HostlibError

MOST_PASSES = 1_000_000  # forward passes of a pipeline in an iteration


@dataclass(frozen=True, slots=True)
class Placement:
    """A worker's place.

    Attributes:
        stage: which part of the model the worker has, from 0; of a model cut into more parts, it has every `stages`-th.
        replica: which pipeline it belongs to, from 0.
        replicas: number of pipelines.
    """

    stage: int
    replica: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options after `gpipe`.

    Attributes:
        stages: parts of the model, each with a worker of its own.
        microbatches: equal parts of a pipeline's batch.
        recompute: keep only each stage's inputs, and compute its activations again in the backward pass.

    Raises:
        HostlibError: a number is too small, or they are too large together.
    """

    stages: int = 2
    microbatches: int = 4
    recompute: bool = False

    def __post_init__(self) -> None:
        _at_least("stages", self.stages, 2)
        _at_least("microbatches", self.microbatches, 1)
        _require_few(self)

    @property
    def chunks(self) -> int:
        """Parts of the model on each worker."""
        return 1


@dataclass(frozen=True, slots=True)
class OneFOneBOptions(PipelineOptions):
    """Options after `1f1b`: those of PipelineOptions.

    Raises:
        HostlibError: a number is too small, or there are fewer micro-batches than stages.
    """

    def __post_init__(self) -> None:
        PipelineOptions.__post_init__(self)
        if self.microbatches < self.stages:
            raise HostlibError(
                f"1f1b needs at least as many micro-batches as its {self.stages} stages, not {self.microbatches}"
            )


@dataclass(frozen=True, slots=True)
class InterleavedOptions:
    """Options after `interleaved`: those of PipelineOptions, and the parts of the model on each worker.

    Raises:
        HostlibError: a number is too small, or the micro-batches do not go round the stages evenly.
    """

    stages: int = 2
    microbatches: int = 4
    chunks: int = 2
    recompute: bool = False

    def __post_init__(self) -> None:
        _at_least("stages", self.stages, 2)
        _at_least("microbatches", self.microbatches, 1)
        _at_least("chunks", self.chunks, 2)
        _require_few(self)
        if self.microbatches % self.stages:
            raise HostlibError(
                f"interleaved:microbatches must be a multiple of its {self.stages} stages, not {self.microbatches}"
            )


@dataclass(frozen=True, slots=True)
class ModelParallelOptions:
    """Options after `modelparallel`: those of PipelineOptions, with the whole batch as the one micro-batch."""

    stages: int = 2
    recompute: bool = False

    def __post_init__(self) -> None:
        _at_least("stages", self.stages, 2)
        _require_few(self)

    @property
    def microbatches(self) -> int:
        return 1

    @property
    def chunks(self) -> int:
        return 1


AnyPipelineOptions = PipelineOptions | InterleavedOptions | ModelParallelOptions


def _at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise HostlibError(f"a pipeline's {option} must be at least {least}, not {value}")


def _require_few(options: AnyPipelineOptions) -> None:
    passes = options.stages * options.microbatches * options.chunks
    if passes > MOST_PASSES:
        raise HostlibError(
            f"a pipeline's stages, microbatches and chunks make {passes} forward passes; at most {MOST_PASSES} are legal"
        )


def microbatch_size(options: AnyPipelineOptions, batch: int) -> int:
    """Examples of a micro-batch.

    Args:
        batch: examples of one worker.

    Raises:
        HostlibError: a pipeline's batch cannot be cut into that many equal parts.
    """
    examples = batch * options.stages
    if examples % options.microbatches:
        raise HostlibError(
            f"a pipeline's batch of {options.stages} workers x {batch} examples cannot be cut into "
            f"{options.microbatches} equal micro-batches"
        )
    return examples // options.microbatches


def placement(worker: int, workers: int, stages: int) -> Placement:
    """A worker's place among workers of pipelines with that many stages."""
    replicas = workers // stages
    return Placement(worker // replicas, worker % replicas, replicas)


def worker_of(stage: int, replica: int, replicas: int) -> int:
    """The worker at a place."""
    return stage * replicas + replica
