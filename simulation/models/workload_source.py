"""Subjects of a simulation: a model or a recorded trace, to which strategies apply, or a bare all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.plan import Plan
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Choice
from hostlib.traces.trace import Trace, read
from simulation.errors import SimulationError
from simulation.models.synthetic_trace import model_layers
from simulation.simulator.workload import trace_of_size


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """The subject of a simulation.

    Attributes:
        layers: as strategies see them; empty if unknown.
        batch: examples of a worker.
        message_bytes: see of_plan.
        bare: one all-reduce without training.
    """

    trace: Trace
    layers: tuple[LayerInfo, ...]
    batch: int
    message_bytes: int
    bare: bool = False

    def plan(self, choice: Choice, workers: int) -> Plan:
        """Apply a strategy to it.

        Raises:
            SimulationError: strategies do not apply to a bare all-reduce.
            HostlibError: see hostlib.strategies.strategy.Choice.plan.
        """
        if self.bare and choice.strategy.plain != DEFAULT_STRATEGY:
            raise SimulationError(
                f"{choice} is a training strategy: name a --model or --trace; an all-reduce takes a mechanism alone"
            )
        return choice.plan(self.trace, self.layers, workers, self.batch)


def known(model: str, trace: Trace, pixels: int | None, batch: int, message_bytes: int) -> WorkloadSource:
    """A model with a known architecture, and its trace."""
    return WorkloadSource(trace, model_layers(model, pixels), batch, message_bytes)


def recorded(path: Path, batch: int, message_bytes: int) -> WorkloadSource:
    """A recorded trace from a file."""
    return WorkloadSource(read(path), (), batch, message_bytes)


def bare(size_bytes: int, message_bytes: int) -> WorkloadSource:
    """One bare all-reduce."""
    return WorkloadSource(trace_of_size(size_bytes), (), 1, message_bytes, bare=True)
