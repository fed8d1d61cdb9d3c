"""The Python API of netfold. Each name's module is loaded when the name is first used.

import netfold

print(netfold.ask("vgg16", workers=32, bandwidth="25gbit").text)
netfold.predict("vgg16", "ring", workers=32, bandwidth="25gbit").iteration_s

with netfold.session("ring") as session:  # in each rank of a script that torchrun starts
    session.all_reduce(tensor, op="avg").wait()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostlib.errors import (
        ContentsError,
        FabricError,
        HostlibError,
        JoinError,
        MissingRankError,
        ModelError,
        OperationError,
        QuantityError,
        RunError,
        ScheduleError,
        SpecError,
        UnknownNameError,
    )
    from hostlib.mechanisms.mechanism import Mechanism, find
    from hostlib.mechanisms.mechanism import registered as mechanisms
    from hostlib.pytorch.reduction import Reduction
    from hostlib.schedules.checker import check
    from hostlib.schedules.schedule import Schedule
    from netfold.flight_record import write_flight_record
    from netfold.prediction import predict
    from netfold.question import ask
    from netfold.rank_metrics import prometheus_collector
    from netfold.recommendation import Cluster, recommend
    from netfold.torch_backend import register
    from netfold.training_session import BucketTimes, Session, SessionReport, session
    from simulation.answers.answer import Answer, Row
    from simulation.errors import SimulationError
    from simulation.experiments.single_iteration import SimulatedIteration
    from simulation.recommendation.candidate import Candidate
    from simulation.recommendation.recommendation import Recommendation

__all__ = [
    "Answer",
    "BucketTimes",
    "Candidate",
    "Cluster",
    "ContentsError",
    "FabricError",
    "HostlibError",
    "JoinError",
    "Mechanism",
    "MissingRankError",
    "ModelError",
    "OperationError",
    "QuantityError",
    "Recommendation",
    "Reduction",
    "Row",
    "RunError",
    "Schedule",
    "ScheduleError",
    "Session",
    "SessionReport",
    "SimulatedIteration",
    "SimulationError",
    "SpecError",
    "UnknownNameError",
    "ask",
    "check",
    "find",
    "mechanisms",
    "predict",
    "prometheus_collector",
    "recommend",
    "register",
    "session",
    "write_flight_record",
]

if not TYPE_CHECKING:
    # The module that defines each name; all others are in hostlib.errors.
    _MODULES = {
        "Answer": "simulation.answers.answer",
        "BucketTimes": "netfold.training_session",
        "Candidate": "simulation.recommendation.candidate",
        "Cluster": "netfold.recommendation",
        "Mechanism": "hostlib.mechanisms.mechanism",
        "Recommendation": "simulation.recommendation.recommendation",
        "Reduction": "hostlib.pytorch.reduction",
        "Schedule": "hostlib.schedules.schedule",
        "Row": "simulation.answers.answer",
        "Session": "netfold.training_session",
        "SessionReport": "netfold.training_session",
        "SimulatedIteration": "simulation.experiments.single_iteration",
        "SimulationError": "simulation.errors",
        "ask": "netfold.question",
        "check": "hostlib.schedules.checker",
        "find": "hostlib.mechanisms.mechanism",
        "mechanisms": "hostlib.mechanisms.mechanism",
        "predict": "netfold.prediction",
        "prometheus_collector": "netfold.rank_metrics",
        "recommend": "netfold.recommendation",
        "register": "netfold.torch_backend",
        "session": "netfold.training_session",
        "write_flight_record": "netfold.flight_record",
    }
    _OTHERWISE = {"mechanisms": "registered"}  # the name in its own module

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(_MODULES.get(name, "hostlib.errors"))
        found = globals()[name] = getattr(module, _OTHERWISE.get(name, name))
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
