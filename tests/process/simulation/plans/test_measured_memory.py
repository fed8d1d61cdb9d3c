"""Predicted memory against what processes take that really train, on the CPU: within a tenth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hostlib.launch.fork_server import ForkServer, fork_server
from simulation.models.compute import Compute
from simulation.models.workload_source import WorkloadSource, model
from simulation.plans.layer_costs import costs_of
from simulation.plans.memory import memory_of
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from tests.conftest import ROOT
from tests.process.simulation.plans import trained_peak

WITHIN = 0.1
QUICK = [
    ("resnet18:pixels=64", 16, "momentum"),
    ("gpt2:context=64:layers=2:width=128:heads=4:classes=5000", 8, "adamw"),
]
MORE = [
    ("lenet", 256, "sgd"),
    ("cifar10_quick", 256, "adam"),
    ("vgg11:pixels=128:classes=100", 32, "sgd"),
    ("vgg11:pixels=64:classes=100", 16, "momentum"),
    ("vgg16:pixels=64:classes=10:norm=batch", 16, "momentum"),
    ("alexnet", 16, "momentum"),
    ("resnet50:pixels=96", 8, "momentum"),
    ("resnet50:pixels=96:version=1", 8, "adam"),
    ("resnet18:pixels=96:norm=group", 32, "adamw"),
    ("googlenet:pixels=128", 8, "momentum"),
    ("inception3:pixels=139", 4, "momentum"),
    ("mobilenet2:pixels=96", 16, "adam"),
    ("gpt2:context=128:layers=4:width=256:heads=4:classes=5000", 8, "adamw"),
]
# Models, batches and optimisers with the bytes that they get: too few, then enough.
MIB = 2**20
PLANTED = [
    ("resnet18:pixels=64", 16, "momentum", 140, 200),
    ("resnet18:pixels=64", 64, "momentum", 160, 320),
    ("resnet18:pixels=64", 16, "adam", 190, 240),
    ("vgg11:pixels=64:classes=100", 16, "momentum", 420, 520),
    ("vgg11:pixels=64:classes=100", 16, "sgd", 300, 400),
    ("mobilenet2:pixels=96", 16, "adam", 230, 320),
    ("mobilenet2:pixels=96", 32, "sgd", 400, 560),
    ("lenet", 512, "sgd", 150, 220),
    ("resnet50:pixels=96", 8, "momentum", 310, 420),
    ("gpt2:context=128:layers=4:width=256:heads=4:classes=5000", 8, "adamw", 160, 240),
]


Measure = Callable[[str, list[dict[str, Any]]], list[Any]]


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with fork_server(trained_peak.__name__, "torch._dynamo", "torch.profiler", folder=ROOT) as server:
        yield server


@pytest.fixture
def measure(forks: ForkServer, tmp_path: Path) -> Measure:
    """What `trained_peak` prints for cases, in a process of its own."""

    def children(how: str, cases: list[dict[str, Any]]) -> list[Any]:
        environment = {trained_peak.HOW_VARIABLE: how, trained_peak.CASES_VARIABLE: json.dumps(cases)}
        output, errors = tmp_path / "output", tmp_path / "errors"
        with output.open("wb") as to, errors.open("wb") as complaints:
            pid = forks.fork(trained_peak.__name__, environment, None, complaints.fileno(), to.fileno())
        while pid not in forks.ended:
            forks.listen(1)
        assert forks.ended[pid] == 0, errors.read_text()
        found: list[Any] = json.loads(output.read_text().splitlines()[-1])
        return found

    return children


def workload(text: str, batch: int) -> WorkloadSource:
    return model(text, Compute(batch, 0.01, 0.02))


def predicted(text: str, batch: int, optimiser: str, foreach: bool = False) -> int:
    (alone,) = memory_of(workload(text, batch), ParallelPlan(), optimiser=optimiser, foreach=foreach)
    return alone.total


def as_case(text: str, batch: int, optimiser: str, **more: Any) -> dict[str, Any]:
    return {"model": text, "batch": batch, "optimiser": optimiser, **more}


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_allocated_memory_is_predicted(case: tuple[str, int, str], measure: Measure) -> None:
    (peak,) = measure("counted", [as_case(*case)])
    assert predicted(*case) == pytest.approx(peak, rel=WITHIN)


@pytest.mark.parametrize("case", [QUICK[0], *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)])
def test_a_processs_peak_is_predicted(case: tuple[str, int, str], measure: Measure) -> None:
    (peak,) = measure("resident", [as_case(*case)])
    assert predicted(*case) == pytest.approx(peak, rel=WITHIN)


@pytest.mark.slow
def test_an_optimiser_that_updates_all_parameters_together_is_predicted(measure: Measure) -> None:
    case = ("resnet50:pixels=64", 2, "adam")
    (peak,) = measure("counted", [as_case(*case, foreach=True)])
    assert predicted(*case, foreach=True) == pytest.approx(peak, rel=WITHIN)
    assert predicted(*case) < (1 - WITHIN) * peak


@pytest.mark.parametrize(
    ("schedule", "microbatches", "recompute"),
    [
        (PipelineSchedule.GPIPE, 4, False),
        pytest.param(PipelineSchedule.ONE_F_ONE_B, 4, False, marks=pytest.mark.slow),
        pytest.param(PipelineSchedule.GPIPE, 8, True, marks=pytest.mark.slow),
        pytest.param(PipelineSchedule.GPIPE, 8, False, marks=pytest.mark.slow),
    ],
)
def test_a_first_stages_memory_is_predicted(
    schedule: PipelineSchedule, microbatches: int, recompute: bool, measure: Measure
) -> None:
    """The convolutions are the first stage, the fully connected layers the second; a micro-batch has 8 examples."""
    text, examples = "vgg11:pixels=64:classes=100", 8
    source = workload(text, examples * microbatches // 2)
    layers = costs_of(source)
    plan = ParallelPlan("ring", 1, schedule, 2, microbatches, recompute=recompute)
    first, _ = memory_of(source, plan, (layers[:-3], layers[-3:]), "momentum", foreach=False)
    held = microbatches if schedule is PipelineSchedule.GPIPE else 2
    case = as_case(text, examples, "momentum", microbatches=microbatches, held=held, recompute=recompute)
    (peak,) = measure("stage", [case])
    assert first.total == pytest.approx(peak, rel=WITHIN)


@pytest.mark.parametrize("planted", [PLANTED[0], *(pytest.param(each, marks=pytest.mark.slow) for each in PLANTED[1:])])
def test_planted_out_of_memory_cases_are_all_predicted(
    planted: tuple[str, int, str, int, int], measure: Measure
) -> None:
    text, batch, optimiser, *limits = planted
    # Each in a process of its own: one that got too little keeps some of what it had.
    cases = [as_case(text, batch, optimiser, limit=limit * MIB) for limit in limits]
    completed = [measure("limited", [case])[0] for case in cases]
    assert completed == [False, True]
    assert [predicted(text, batch, optimiser) <= limit * MIB for limit in limits] == completed
