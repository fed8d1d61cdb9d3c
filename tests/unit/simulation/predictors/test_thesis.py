"""The recommender thesis's equations, worked out by hand from its text."""

from __future__ import annotations

from math import inf

import pytest

from hostlib.pipelines.partitioner import LayerCost, Partition, Stage, partition_with_replicas
from simulation.errors import SimulationError
from simulation.models.compute import Compute
from simulation.models.workload_source import model
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.predictors.alternatives import Found, by_data, by_equations, by_hardware, by_suite
from simulation.predictors.builtin import pipedream, sequential
from simulation.predictors.builtin.horovod import all_reduce_s, horovod_s
from simulation.predictors.builtin.horovod_fusion import fused, fusion_s
from simulation.predictors.builtin.torchgpipe import communication_s, share_of_sequential
from simulation.predictors.predictor import predict
from simulation.predictors.ring_links import WorkerLink, ring_links
from simulation.simulator.network import Network

MB = 10**6

# ---- section 4.1 ---------------------------------------------------------------------------------------------------


def test_an_epoch_is_extrapolated_from_a_few_batches() -> None:
    """ImageNet of table 3.2 in batches of 32 (table 3.3): 40,000 batches of 0.1 s on average."""
    assert sequential.epoch_s([0.09, 0.1, 0.11], 1_280_000, 32) == pytest.approx(4000)
    # MNIST in batches of 128: 546.875, so 547 batches.
    assert sequential.epoch_s([0.01], 70_000, 128) == pytest.approx(5.47)
    with pytest.raises(SimulationError, match="at least one batch"):
        sequential.epoch_s([], 70_000, 128)


# ---- equation 5.1 --------------------------------------------------------------------------------------------------


def test_equation_5_1() -> None:
    """T_seq 0.4 s, 4 workers, G 100 MB, th 64 MB; the slowest link has 1 ms and 1,000 MB/s.

    0.4 / 4 + 2 x 3 x (0.001 + 64 / (4 x 1000)) = 0.1 + 6 x 0.017 = 0.202
    """
    links = [WorkerLink(1e-5, 10_000 * MB)] * 3 + [WorkerLink(1e-3, 1000 * MB)]
    assert horovod_s(0.4, 100 * MB, 64 * MB, links) == pytest.approx(0.202)
    # MobileNetV2's 14 MB are below the threshold: 0.1 + 6 x (0.001 + 14 / 4000) = 0.127.
    assert horovod_s(0.4, 14 * MB, 64 * MB, links) == pytest.approx(0.127)


def test_the_slowest_link_is_that_of_latency_and_bandwidth_together() -> None:
    """One link has the latency, the other the bandwidth: 2 x 1 x max(0.01 + 1 / 2000, 0.001 + 1 / 200) = 0.021."""
    assert all_reduce_s(1 * MB, [WorkerLink(0.01, 1000 * MB), WorkerLink(0.001, 100 * MB)]) == pytest.approx(0.021)


def test_one_worker_sums_nothing() -> None:
    assert horovod_s(0.4, 100 * MB, 64 * MB, [WorkerLink(1.0, 1.0)]) == pytest.approx(0.4)


def test_gradients_are_fused_cycle_by_cycle() -> None:
    """A cycle of 5 ms and a threshold of 10 MB: 4 + 4 MB in the first, 8 and 9 MB apart, 20 MB above it alone."""
    ready = [(0.001, 4), (0.004, 4), (0.006, 8), (0.007, 9), (0.012, 20)]
    made = fused([(at, size * MB) for at, size in ready], 10 * MB, 0.005)
    assert made == [
        (0.005, 8 * MB),
        (0.010, 8 * MB),
        (0.010, 9 * MB),
        (pytest.approx(0.015), 20 * MB),
    ]
    with pytest.raises(SimulationError, match="cycle time must be above 0"):
        fused([], 10 * MB, 0)


def test_all_reduces_that_do_not_hide_behind_computing_follow_each_other() -> None:
    """Two workers, 1,000 MB/s: 2 x 1 x size / 2000, so 8 MB take 8 ms.

    From 5 to 13 ms, to 21 ms, 9 MB to 30 ms, 20 MB to 50 ms; computing ends at 12 ms.
    """
    links = [WorkerLink(0.0, 1000 * MB)] * 2
    ready = [(0.001, 4 * MB), (0.004, 4 * MB), (0.006, 8 * MB), (0.007, 9 * MB), (0.012, 20 * MB)]
    assert fusion_s(0.012, ready, 10 * MB, 0.005, links) == pytest.approx(0.050)
    assert fusion_s(0.3, ready[:2], 10 * MB, 0.005, links) == pytest.approx(0.3)


# ---- equations 6.1 and 6.2 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("microbatches", "exact", "table"),
    [(12, 0.3125, 0.31), (20, 0.2875, 0.29), (28, 31 / 112, 0.28), (30, 0.275, 0.28)],
)
def test_equation_6_1_has_the_values_of_table_6_1(microbatches: int, exact: float, table: float) -> None:
    assert share_of_sequential(4, microbatches) == pytest.approx(exact)
    assert share_of_sequential(4, microbatches) == pytest.approx(table, abs=0.005 + 1e-9)


def test_one_microbatch_is_model_parallelism() -> None:
    assert share_of_sequential(4, 1) == 1


def test_equation_6_2() -> None:
    """4 workers, 3 micro-batches; a micro-batch takes 1, 2 and 3 s over the links.

    Filling: max(1) + max(1, 2) = 3. Full: (3 - 2) x 3 = 3. Emptying: max(2, 3) + max(3) = 6. Both ways: 2 x 12 = 24.
    """
    assert communication_s(3, [1, 2, 3]) == 24
    # Alike links: 2 (#mb + W - 2) times one transfer.
    assert communication_s(12, [0.5] * 3) == pytest.approx(2 * 14 * 0.5)
    assert communication_s(5, [0.5]) == pytest.approx(2 * 5 * 0.5)
    with pytest.raises(SimulationError, match="at least 4 micro-batches, not 2"):
        communication_s(2, [1] * 5)


# ---- chapter 7 -----------------------------------------------------------------------------------------------------


def test_batches_go_round_all_replicas() -> None:
    """Figure 7.3: stages of 3 and 2 workers. Their gcd is 1, by which every number of batches can be divided."""
    assert pipedream.batches_by_gcd(100, [3, 2]) == 100
    assert pipedream.batches_for_all(100, [3, 2]) == 96
    assert pipedream.batches_by_gcd(101, [4, 2]) == 100 and pipedream.batches_for_all(101, [4, 2]) == 100
    with pytest.raises(SimulationError, match="5 batches cannot go round stages with 3, 2 replicas"):
        pipedream.batches_for_all(5, [3, 2])


def test_stages_have_as_many_replicas_as_their_layers_need() -> None:
    """Figure 7.1's 2-1-1: a layer of twice the others' time gets two workers, and each batch takes one unit.

    12 batches: the first takes 4 units, the other 11 one each.
    """
    layers = [
        LayerCost(20e6 / 3, 40e6 / 3, 0, 0),
        LayerCost(10e6 / 3, 20e6 / 3, 0, 0),
        LayerCost(10e6 / 3, 20e6 / 3, 0, 0),
    ]
    found = partition_with_replicas(layers, 4)
    assert found == Partition((Stage(0, 1, 2), Stage(1, 2), Stage(2, 3)), pytest.approx(10e6))
    assert pipedream.steady_s(found) == pytest.approx(0.01)
    assert pipedream.epoch_s(found, layers, 12) == pytest.approx(0.04 + 11 * 0.01)
    # A 13th batch has no partner on the first stage.
    assert pipedream.epoch_s(found, layers, 13) == pipedream.epoch_s(found, layers, 12)


# ---- section 8.3 ---------------------------------------------------------------------------------------------------


def test_the_four_alternatives() -> None:
    """4 workers, 1,000 batches, of which one worker does one in 0.1 s and all four one in 0.15 s, equations say 0.13 s."""
    batch = [0.09, 0.11]
    equations = by_equations(batch, 1000, lambda alone: alone + 0.03)
    data = by_data([0.14, 0.16], 1000, 4)
    hardware = by_hardware(400.0, 4, lambda workers: 0.8 * workers)
    suite = by_suite([150.0, 152.0, 148.0], 4)
    assert equations == Found(pytest.approx(130), pytest.approx(0.2), pytest.approx(0.2))
    assert data == Found(pytest.approx(150), pytest.approx(0.3), pytest.approx(1.2))
    assert hardware == Found(pytest.approx(125), 400, 400)
    assert suite == Found(150, 450, 1800)
    # Figure 8.1: the models take least, the suite most; data take more workers than hardware, which takes longer.
    assert equations.worker_s < data.worker_s < hardware.worker_s < suite.worker_s
    assert equations.took_s < data.took_s < hardware.took_s


def test_alternatives_need_measurements() -> None:
    with pytest.raises(SimulationError, match="nothing was measured"):
        by_data([], 10, 4)
    with pytest.raises(SimulationError, match="must be above 0"):
        by_hardware(1.0, 4, lambda workers: 0)


# ---- behind the protocol -------------------------------------------------------------------------------------------

LENET = model("lenet:classes=10:channels=1", Compute(32, 0.01, 0.02))
FAST = Cluster(4, Network(8e9, 2000))  # 1,000 MB/s and 2 us


def test_links_are_those_of_the_network() -> None:
    assert ring_links(LENET, FAST, ParallelPlan.parse("ring", 4)) == [WorkerLink(pytest.approx(2e-6), 1e9)] * 4
    racks = Cluster(4, Network(8e9, 2000, racks=2, oversubscription=4))
    near, far = WorkerLink(pytest.approx(2e-6), 1e9), WorkerLink(pytest.approx(4e-6), 0.5e9)
    assert ring_links(LENET, racks, ParallelPlan.parse("ring", 4)) == [near, far, near, far]
    gpus = Cluster(4, Network(8e9, 2000), gpus_per_host=2, host_link_gb_s=50)
    assert ring_links(LENET, gpus, ParallelPlan.parse("ring", 4))[0] == WorkerLink(0.0, 50e9)


def test_thesis_predictors_predict_their_plans() -> None:
    ring = ParallelPlan.parse("ring", 4)
    size = LENET.trace.bytes
    horovod = predict(LENET, FAST, ring, "horovod")
    assert horovod is not None and horovod.memory_bytes is not None
    assert horovod.iteration_s == pytest.approx(0.03 + 6 * (2e-6 + size / 4e9))
    fusion = predict(LENET, FAST, ring, "horovod-fusion")
    assert fusion is not None and 0.03 < fusion.iteration_s < 0.035 + 6 * (2e-6 + size / 4e9)
    alone = predict(LENET, Cluster(1, Network(8e9)), ParallelPlan(), "sequential")
    assert alone is not None and alone.iteration_s == pytest.approx(0.03)
    pipeline = predict(LENET, FAST, ParallelPlan.parse("gpipe:stages=4:microbatches=8/ring", 4), "gpipe")
    # 4 workers' batches on one worker take 0.12 s.
    assert pipeline is not None and 0.12 * 11 / 32 < pipeline.iteration_s < 0.06
    dream = predict(LENET, FAST, ParallelPlan.parse("1f1b:stages=2:microbatches=4/ring", 4), "pipedream")
    assert dream is not None and 0.03 <= dream.iteration_s < 0.06


@pytest.mark.parametrize(
    ("predictor", "plan"),
    [
        ("sequential", "ring"),
        ("horovod", "inagg+mcast"),
        ("horovod", "gpipe:stages=4:microbatches=4/ring"),
        ("horovod-fusion", "sfb/ring"),
        ("gpipe", "ring"),
        ("gpipe", "gpipe:stages=2:microbatches=4/ring"),
        ("pipedream", "ring"),
    ],
)
def test_other_plans_are_not_theirs(predictor: str, plan: str) -> None:
    assert predict(LENET, FAST, ParallelPlan.parse(plan, 4), predictor) is None


def test_links_without_a_limit_take_no_time() -> None:
    assert WorkerLink(0.0, inf).transfer_s(10**9) == 0
