"""What a run takes: an epoch's time, GPU hours and money."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from simulation.errors import SimulationError


def require_legal(examples: int | None, epochs: int, price: float | None) -> None:
    """Check a run's numbers, those that are given. Raises SimulationError: one is illegal."""
    if examples is not None and examples < 1:
        raise SimulationError(f"--examples must be at least 1, not {examples}")
    if epochs < 1:
        raise SimulationError(f"--epochs must be at least 1, not {epochs}")
    if price is not None and not 0 <= price < math.inf:
        raise SimulationError(f"--price must be 0 or more, not {price}")


@dataclass(frozen=True, slots=True)
class RunCost:
    """An epoch, or several.

    Attributes:
        examples: of the data set.
        iterations: of all epochs.
        seconds: of all epochs; low_s, high_s: from iterations' intervals.
        gpu_hours: of all workers.
        price: of a GPU hour; None if it is not given, and then there is no `cost`.
    """

    examples: int
    epochs: int
    iterations: int
    seconds: float
    low_s: float
    high_s: float
    gpu_hours: float
    price: float | None

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.gpu_hours * self.price

    @classmethod
    def of(
        cls,
        iteration_ms: tuple[float, float, float],
        examples: int,
        batch: int,
        workers: int,
        epochs: int = 1,
        price: float | None = None,
    ) -> RunCost:
        """What epochs take.

        Args:
            iteration_ms: of one iteration, with its interval's ends.
            batch: examples of each worker and iteration.

        Raises:
            SimulationError: a number is illegal.
        """
        require_legal(examples, epochs, price)
        iterations = epochs * math.ceil(examples / (batch * workers))
        seconds, low_s, high_s = (each * iterations / 1e3 for each in iteration_ms)
        return cls(examples, epochs, iterations, seconds, low_s, high_s, seconds * workers / 3600, price)

    def as_json(self) -> dict[str, Any]:
        return {
            "examples": self.examples,
            "epochs": self.epochs,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "gpu_hours": self.gpu_hours,
            "cost": self.cost,
        }
