"""Look up predictors of cells' times by name: files of simulation/predictors/builtin/, and entry points of
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
    """Predicted time of one iteration of a cell, undilated.

    Attributes:
        iteration_s: seconds, of the slowest worker.
        low_s, high_s: the interval in which it is in nine of ten cases; None if the predictor has none.
    """

    iteration_s: float
    low_s: float | None = None
    high_s: float | None = None


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """A predictor.

    Attributes:
        name: what `--predictor` takes.
        summary: what it does, in one line.
        predict: takes an experiment and one of its cells; returns None if it cannot predict that. Raises HostlibError,
            SimulationError: there is no such model, or the network is impossible.
        with_interval: like `predict`, with an interval, which may take longer; None: there is none.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    summary: str
    predict: Callable[[Experiment, Cell], Prediction | None]
    with_interval: Callable[[Experiment, Cell], Prediction | None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.summary, str) or not self.name:
            raise SpecError("name and summary must be strings")
        if not callable(self.predict):
            raise SpecError(f"predict must be a function, not {self.predict!r}")
        if self.with_interval is not None and not callable(self.with_interval):
            raise SpecError(f"with_interval must be a function, not {self.with_interval!r}")

    def predict_interval(self, experiment: Experiment, cell: Cell) -> Prediction | None:
        """Predict with an interval, if the predictor has any. Raises what `predict` does."""
        return (self.with_interval or self.predict)(experiment, cell)


@cache
def predictors() -> Registry[PredictorSpec]:
    """The registered predictors and those that could not be registered."""
    return load_registry(builtin, "netfold.predictors", PredictorSpec)


def find_predictor(name: str = DEFAULT_PREDICTOR) -> PredictorSpec:
    """Find a predictor by its name.

    Raises:
        UnknownNameError, SpecError: there is none, or it could not be registered.
    """
    return predictors().find("predictor", name)
