"""Plans from their texts, and plans on clusters."""

from __future__ import annotations

import pytest

from hostlib.errors import HostlibError
from simulation.errors import SimulationError
from simulation.models.compute import Compute
from simulation.models.workload_source import model
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.plans.stages import parts_of_plan
from simulation.predictors.predictor import predict
from simulation.simulator.network import Network


@pytest.mark.parametrize(
    "text",
    [
        "ring",
        "hybcomm/inagg+mcast",
        "gpipe:stages=4:microbatches=8/ring",
        "1f1b:stages=2:microbatches=4:recompute=yes/inagg+mcast",
        "interleaved:stages=4:microbatches=8:chunks=2/ring",
        "modelparallel:stages=8/ring",
    ],
)
def test_a_plan_is_read_as_it_is_written(text: str) -> None:
    plan = ParallelPlan.parse(text, 8)
    assert plan.name == text and plan.workers == 8


def test_what_stages_leave_of_the_workers_are_replicas() -> None:
    plan = ParallelPlan.parse("1f1b:stages=4:microbatches=8", 12)
    assert plan == ParallelPlan("ring", 3, PipelineSchedule.ONE_F_ONE_B, 4, 8)
    assert ParallelPlan.parse("gpipe/ring", 4).name == "gpipe:stages=2:microbatches=4/ring"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rong", "unknown mechanism 'rong'"),
        ("gpipe:stages=3/ring", "gpipe has 3 stages, which do not divide 8 workers"),
        ("gpipe:stages=0/ring", "stages must be at least 2, not 0"),
        ("gpipe:stages=four/ring", "gpipe:stages takes a number, not 'four'"),
        ("gpipe:steps=4/ring", "unknown option of gpipe 'steps'"),
        ("gpipe:stages=4/rong", "unknown mechanism 'rong'"),
        ("interleaved:chunks=1/ring", "chunks must be at least 2, not 1"),
        ("1f1b:stages=4:chunks=2/ring", "unknown option of 1f1b 'chunks'"),
        ("gpipe:stages=4:microbatches=0/ring", "microbatches must be at least 1, not 0"),
    ],
)
def test_a_wrong_plan_is_one_line(text: str, says: str) -> None:
    with pytest.raises((SimulationError, HostlibError)) as error:
        ParallelPlan.parse(text, 8)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_plan_is_predicted_on_a_cluster() -> None:
    workload = model("lenet", Compute(32, 0.002, 0.004))
    cluster = Cluster(4, Network(1e9))
    estimate, fast = (
        predict(workload, each, ParallelPlan.parse("ring", 4)) for each in (cluster, Cluster(4, Network(1e9), speed=2))
    )
    assert estimate is not None and fast is not None
    assert 0.006 < estimate.iteration_s < 0.2 and estimate.fits
    assert fast.iteration_s < estimate.iteration_s
    with pytest.raises(SimulationError, match="ring is for 8 workers, and there are 4"):
        predict(workload, cluster, ParallelPlan.parse("ring", 8))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved:chunks=2", "modelparallel"])
def test_a_pipeline_is_predicted_on_a_cluster(schedule: str) -> None:
    """Each of its workers has less of the model, and so needs less memory."""
    workload = model("resnet18:pixels=32", Compute(8, 0.02, 0.04))
    of_pipeline, alike = ParallelPlan.parse(f"{schedule}/ring", 4), ParallelPlan.parse("ring", 4)
    whole, cut = (predict(workload, Cluster(4, Network(1e11)), plan) for plan in (alike, of_pipeline))
    assert whole is not None and cut is not None and whole.memory_bytes is not None and cut.memory_bytes is not None
    assert cut.memory_bytes < whole.memory_bytes
    assert 0.06 < whole.iteration_s < cut.iteration_s < 0.2
    assert sum(map(len, parts_of_plan(workload, of_pipeline))) == len(parts_of_plan(workload, alike)[0])
    tight = predict(workload, Cluster(4, Network(1e11), memory_bytes=whole.memory_bytes - 1), alike)
    enough = predict(workload, Cluster(4, Network(1e11), memory_bytes=whole.memory_bytes), alike)
    assert tight is not None and not tight.fits and enough is not None and enough.fits


def test_a_stage_has_a_copy_of_weights_that_it_borrows() -> None:
    """The head of GPT-2 shares the tokens' weights, which the first stage has."""
    workload = model("gpt2:context=16:layers=2:width=8:heads=2:classes=100", Compute(8, 0.02, 0.04))
    first, last = parts_of_plan(workload, ParallelPlan.parse("1f1b:stages=2:microbatches=2/ring", 2))
    assert first[0].gradient_bytes == last[-1].gradient_bytes == 4 * 100 * 8
    (whole,) = parts_of_plan(workload, ParallelPlan.parse("ring", 2))
    assert whole[-1].gradient_bytes == 0


def test_clusters_have_legal_numbers() -> None:
    with pytest.raises(SimulationError, match="10 workers cannot be on hosts with 4 GPUs each"):
        Cluster(10, Network(1e9), gpus_per_host=4)
    with pytest.raises(SimulationError, match="speed must be above 0"):
        Cluster(8, Network(1e9), speed=0)
