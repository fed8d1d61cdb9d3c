"""Candidates of a search: plans with their times and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hostlib.strategies.strategy import DEFAULT_STRATEGY, choose
from simulation.answers.perturbation import Interval
from simulation.plans.parallel_plan import ParallelPlan

NO_BUCKET, UNLIMITED = "each gradient by itself", "any number"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that was played.

    Attributes:
        iteration_ms: time of an iteration; low_ms, high_ms: from its 5th to its 95th percentile.
        memory_bytes: of each worker's GPU; None if unknown.
        fits: in the GPU's memory; None if the need or the memory is unknown.
        finalist: played as `netfold ask` plays it, with jitter and a full interval. Otherwise the time is of one play
            in which all workers are alike, which is at most as long.
        bucket_bytes, slots: as played; 0 for none and for any number.
        servers: hosts that it needs beside the workers'.
    """

    plan: ParallelPlan
    iteration_ms: float
    low_ms: float
    high_ms: float
    memory_bytes: int | None
    fits: bool | None
    uses_fabric: bool
    servers: int
    bucket_bytes: int
    slots: int
    finalist: bool = False

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def interval(self) -> Interval:
        return Interval(self.low_ms, self.high_ms)

    @property
    def may_run(self) -> bool:
        """Whether it may be recommended: nothing says that it does not fit."""
        return self.fits is not False

    @property
    def plainness(self) -> tuple[bool, ...]:
        """The smaller, the less it asks of switches, hosts and users: of plans as fast, the plainest is recommended."""
        strategy = self.plan.schedule is not None or choose(self.plan.mechanism).strategy.plain != DEFAULT_STRATEGY
        return (
            self.uses_fabric,
            self.servers > 0,
            strategy,
            self.plan.recompute,
            self.plan.bucket_bytes is not None,
            self.plan.slots is not None,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": self.name,
            "iteration_ms": self.iteration_ms,
            "low_ms": self.low_ms,
            "high_ms": self.high_ms,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "uses_fabric": self.uses_fabric,
            "servers": self.servers,
            "bucket_bytes": self.bucket_bytes,
            "slots": self.slots,
            "finalist": self.finalist,
        }
