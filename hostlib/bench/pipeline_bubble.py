"""`hostlib bubble`: how long a pipeline's workers idle, measured beside the formula. Torch-free except for the launch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from hostlib.errors import RunError
from hostlib.launch.fork_server import fork_server
from hostlib.launch.hosts import LARGEST_WORLD, LocalHosts
from hostlib.launch.launcher import run_ranks
from hostlib.strategies.strategy import Strategy, choose

MODULE = "hostlib.bench.pipeline_rank"


@dataclass(frozen=True, slots=True)
class BubbleOptions:
    """What to measure.

    Attributes:
        mechanism: a pipeline strategy with its options, and a mechanism, which is not used.
        forward_s, backward_s: of one worker's part of the model for one micro-batch.

    Raises:
        RunError: the strategy is no pipeline, or a number is out of range.
    """

    mechanism: str
    forward_s: float
    backward_s: float
    iterations: int

    def __post_init__(self) -> None:
        stages = require_pipeline(self.mechanism).stages
        if stages > LARGEST_WORLD:
            raise RunError(f"a pipeline has at most {LARGEST_WORLD} workers here, not {stages}")
        if not (self.forward_s > 0 and self.backward_s > 0):
            raise RunError("--forward and --backward must be above 0")
        if self.iterations < 1:
            raise RunError(f"--iterations must be at least 1, not {self.iterations}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Bubble:
    """A pipeline's iteration, predicted and measured.

    Attributes:
        iteration_ms, measured_ms: without transfers; the median of the slowest worker's.
        bubble, measured_bubble: the part of it in which a worker does not compute, the mean over the workers.
    """

    mechanism: str
    stages: int
    microbatches: int
    chunks: int
    iteration_ms: float
    measured_ms: float
    bubble: float
    measured_bubble: float


def require_pipeline(mechanism: str) -> Strategy:
    """The strategy of a pipeline.

    Raises:
        RunError: it is no pipeline's.
        HostlibError: there is none of that name, or an option is illegal.
    """
    strategy = choose(mechanism).strategy
    if strategy.stages < 2:
        raise RunError(f"{mechanism} is not a pipeline: gpipe, 1f1b, interleaved or modelparallel")
    return strategy


def measured_bubbles(asked: list[BubbleOptions], report: Callable[[str], None]) -> list[Bubble]:
    """Measure pipelines one after the other.

    Args:
        report: called with the mechanism that comes next.

    Raises:
        HostlibError: a rank failed.
    """
    found = []
    with fork_server(MODULE, "hostlib.train.preload", "hostlib.strategies.common.pipeline_trainer") as forks:
        for each in asked:
            report(each.mechanism)
            stages = choose(each.mechanism).strategy.stages
            texts = [each.to_json()] * stages
            done = run_ranks(MODULE, texts.__getitem__, stages, LocalHosts(), lambda event: None, 0, forks)
            found.append(Bubble(**done))
    return found
