"""What predicts how long an experiment's cells take, by name: files of simulation/predictors/builtin/, and entry points of
`netfold.predictors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hostlib.errors import SpecError
from hostlib.system.plugins import Registry, load_registry
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.predictors import builtin

DEFAULT_PREDICTOR = "simulator"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one iteration of a cell takes, undilated.

    Attributes:
        iteration_s: seconds, of the slowest worker.
    """

    iteration_s: float


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """A predictor.

    Attributes:
        name: what `--predictor` takes.
        summary: what it does, in a line.
        predict: of an experiment and one of its cells; None where it cannot say. Raises HostlibError, SimulationError:
            there is no such model, or a network that cannot be.

    Raises:
        SpecError: a field is not of its kind.
    """

    name: str
    summary: str
    predict: Callable[[Experiment, Cell], Prediction | None]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.summary, str) or not self.name:
            raise SpecError("name and summary must be texts")
        if not callable(self.predict):
            raise SpecError(f"predict must be a function, not {self.predict!r}")


@cache
def predictors() -> Registry[PredictorSpec]:
    """All there are, and those that could not be registered."""
    return load_registry(builtin, "netfold.predictors", PredictorSpec)


def find_predictor(name: str = DEFAULT_PREDICTOR) -> PredictorSpec:
    """A predictor by its name.

    Raises:
        UnknownNameError, SpecError: there is none, or it could not be registered.
    """
    return predictors().find("predictor", name)
