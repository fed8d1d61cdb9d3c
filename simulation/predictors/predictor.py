"""Predictors: how long an iteration of a parallel plan takes on a cluster, and whether it fits into memory.

`predict(workload, cluster, plan)` is what commands and experiments call. A predictor is a file of
simulation/predictors/builtin/, or an entry point of `netfold.predictors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from hostlib.errors import SpecError
from hostlib.system.plugins import Registry, load_registry
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.plans.stages import memory_of_plan
from simulation.predictors import builtin
from simulation.predictors.experiment_cells import parts_of

DEFAULT_PREDICTOR = "simulator"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan needs.

    Attributes:
        iteration_s: seconds of one iteration, of the slowest worker, undilated.
        low_s, high_s: the interval in which it is in nine of ten cases; None if the predictor has none.
        memory_bytes: of the worker that needs most; None if too little is known of the model.
        fits: into each worker's memory, as far as is known.
    """

    iteration_s: float
    low_s: float | None = None
    high_s: float | None = None
    memory_bytes: int | None = None
    fits: bool = True


Predict = Callable[[WorkloadSource, Cluster, ParallelPlan], Estimate | None]


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """A predictor.

    Attributes:
        name: what `--predictor` takes.
        summary: what it does, in one line.
        predict: predicts an iteration's time; returns None if it cannot predict such a plan. Raises HostlibError,
            SimulationError: the network is impossible, or too little is known of the model.
        with_interval: like `predict`, with an interval, which may take longer; None: there is none.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    summary: str
    predict: Predict
    with_interval: Predict | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.summary, str) or not self.name:
            raise SpecError("name and summary must be strings")
        if not callable(self.predict):
            raise SpecError(f"predict must be a function, not {self.predict!r}")
        if self.with_interval is not None and not callable(self.with_interval):
            raise SpecError(f"with_interval must be a function, not {self.with_interval!r}")

    def estimate(
        self, workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan, interval: bool = False
    ) -> Estimate | None:
        """Predict a plan's time and memory, with an interval if that is asked for and the predictor has any.

        Raises:
            HostlibError, SimulationError: see `predict`.
        """
        chosen = self.with_interval if interval and self.with_interval is not None else self.predict
        found = chosen(workload, cluster, plan)
        if found is None or found.memory_bytes is not None or workload.architecture is None:
            return found
        needed = max(each.total for each in memory_of_plan(workload, plan))
        fits = cluster.memory_bytes is None or needed <= cluster.memory_bytes
        return replace(found, memory_bytes=needed, fits=fits)

    def of_cell(
        self, experiment: Experiment, cell: Cell, interval: bool = False, memory_bytes: int | None = None
    ) -> Estimate | None:
        """Predict a cell of an experiment; None for real training and a library's own all-reduce.

        Args:
            memory_bytes: of each worker's GPU; None: everything fits.

        Raises:
            HostlibError, SimulationError: there is no such model, or see `predict`.
        """
        parts = parts_of(experiment, cell)
        if parts is None:
            return None
        workload, cluster, plan = parts
        return self.estimate(workload, replace(cluster, memory_bytes=memory_bytes), plan, interval)


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


def predict(
    workload: WorkloadSource,
    cluster: Cluster,
    plan: ParallelPlan,
    predictor: str = DEFAULT_PREDICTOR,
    interval: bool = False,
) -> Estimate | None:
    """Predict a plan's time and memory; None if the predictor cannot predict such a plan.

    Raises:
        UnknownNameError, SpecError: see find_predictor.
        HostlibError, SimulationError: the network is impossible, or too little is known of the model.
    """
    return find_predictor(predictor).estimate(workload, cluster, plan, interval)
