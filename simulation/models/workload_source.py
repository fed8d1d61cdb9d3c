"""What is simulated: a model or a recorded trace, of which strategies make workloads, or a bare all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Choice
from hostlib.traces.trace import Trace, read
from simulation.errors import SimulationError
from simulation.models.synthetic_trace import model_layers
from simulation.simulator.workload import Workload, of_plan, trace_of_size


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """What is simulated.

    Attributes:
        layers: as strategies see them; empty where they are not known.
        batch: examples of a worker.
        message_bytes: see of_plan.
        bare: no training, but one all-reduce.
    """

    trace: Trace
    layers: tuple[LayerInfo, ...]
    batch: int
    message_bytes: int
    bare: bool = False

    def workload(self, choice: Choice, workers: int) -> Workload:
        """What a strategy makes of it.

        Raises:
            SimulationError: an all-reduce, which has no strategies.
            HostlibError: see hostlib.strategies.strategy.Choice.plan.
        """
        if self.bare and choice.strategy.plain != DEFAULT_STRATEGY:
            raise SimulationError(
                f"{choice} is a way to train: name a --model or --trace; an all-reduce is a mechanism's"
            )
        return of_plan(choice.plan(self.trace, self.layers, workers, self.batch), self.message_bytes)


def known(model: str, trace: Trace, pixels: int | None, batch: int, message_bytes: int) -> WorkloadSource:
    """A model whose architecture is known, and its trace."""
    return WorkloadSource(trace, model_layers(model, pixels), batch, message_bytes)


def recorded(path: Path, batch: int, message_bytes: int) -> WorkloadSource:
    """What a file describes."""
    return WorkloadSource(read(path), (), batch, message_bytes)


def bare(size_bytes: int, message_bytes: int) -> WorkloadSource:
    """One all-reduce."""
    return WorkloadSource(trace_of_size(size_bytes), (), 1, message_bytes, bare=True)
