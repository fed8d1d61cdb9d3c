"""Parallel plans: data-parallel replicas of a model, or of a pipeline's stages.

A plan is written as a strategy and a mechanism are: `ring`, `hybcomm/inagg+mcast`, `gpipe:stages=4:microbatches=8/ring`,
`interleaved:stages=4:microbatches=8:chunks=2/ring`. A pipeline's mechanism sums the gradients of each stage's replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hostlib.strategies.strategy import choose
from simulation.errors import SimulationError


class PipelineSchedule(Enum):
    """In which order a stage does its micro-batches' forward and backward passes."""

    ONE_AT_A_TIME = "modelparallel"  # no pipeline: the whole batch goes through one stage after the other
    GPIPE = "gpipe"  # all forward passes, then all backward passes
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"  # 1f1b, with several chunks of the model on each worker


DEFAULT_MECHANISM = "ring"


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """How a model's training is spread over workers.

    In an iteration, each worker brings a batch of examples: the workers of a pipeline train together on theirs.

    Attributes:
        mechanism: MECHANISM or STRATEGY/MECHANISM, which sums the gradients of replicas; with one replica it is not used.
        replicas: of the whole model, or of each stage; each has its own examples.
        schedule: of a pipeline; None if each worker has the whole model.
        stages: workers of a pipeline, one for each stage.
        microbatches: parts into which a replica's batch is cut.
        chunks: of the model on each worker of a pipeline: 1 but with `interleaved`.
        recompute: activations are not kept but computed again in the backward pass.
        bucket_bytes: gradients are summed together up to this size; None for the default.
        slots: of the job on each switch; None for the default.

    Raises:
        SimulationError: a number is illegal, or does not go with the schedule.
    """

    mechanism: str = DEFAULT_MECHANISM
    replicas: int = 1
    schedule: PipelineSchedule | None = None
    stages: int = 1
    microbatches: int = 1
    chunks: int = 1
    recompute: bool = False
    bucket_bytes: int | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        for name in ("replicas", "stages", "microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise SimulationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.schedule is None and (self.stages, self.chunks) != (1, 1):
            raise SimulationError("stages and chunks need a pipeline: gpipe, 1f1b, interleaved or modelparallel")
        if self.schedule is not None and self.stages < 2:
            raise SimulationError(f"{self.schedule.value} needs at least 2 stages")
        if self.schedule is PipelineSchedule.INTERLEAVED and self.chunks < 2:
            raise SimulationError("interleaved needs at least 2 chunks of the model on each worker")
        if self.schedule is not PipelineSchedule.INTERLEAVED and self.chunks != 1:
            raise SimulationError("several chunks on a worker need interleaved")

    @classmethod
    def parse(cls, text: str, workers: int) -> ParallelPlan:
        """A plan from its text; what the stages leave of the workers are replicas.

        Raises:
            SimulationError: the stages do not divide the workers, or see the class.
            HostlibError: there is no such mechanism, strategy or option, or an option's value has the wrong type.
        """
        choice = choose(text)
        name, options = choice.strategy.plain, choice.strategy.options
        if name not in (schedule.value for schedule in PipelineSchedule):
            return cls(text, replicas=workers)
        if workers % options.stages:
            raise SimulationError(f"{name} has {options.stages} stages, which do not divide {workers} workers")
        return cls(
            choice.mechanism.name,
            workers // options.stages,
            PipelineSchedule(name),
            options.stages,
            options.microbatches,
            options.chunks,
            options.recompute,
        )

    @property
    def workers(self) -> int:
        return self.stages * self.replicas

    @property
    def name(self) -> str:
        """As it is written; bucket and slots are left out."""
        if self.schedule is None:
            return self.mechanism
        given = [self.schedule.value, f"stages={self.stages}"]
        if self.schedule is not PipelineSchedule.ONE_AT_A_TIME:
            given.append(f"microbatches={self.microbatches}")
        if self.chunks > 1:
            given.append(f"chunks={self.chunks}")
        if self.recompute:
            given.append("recompute=yes")
        return f"{':'.join(given)}/{self.mechanism}"
