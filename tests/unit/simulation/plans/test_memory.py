"""Memory of plans, worked out by hand; tests/process/simulation/plans measures it."""

from __future__ import annotations

import pytest

from hostlib.errors import UnknownNameError
from simulation.errors import SimulationError
from simulation.models.compute import Compute
from simulation.models.workload_source import bare, model
from simulation.plans.layer_costs import LayerCosts, costs_of
from simulation.plans.memory import Memory, in_flight, memory_of
from simulation.plans.parallel_plan import ParallelPlan, PipelineSchedule
from simulation.plans.stages import memory_of_plan, parts_of_plan

LENET = model("lenet:classes=10:channels=1", Compute(100, 0.1, 0.2))
# conv1 28x28x32, pool1 14x14x32, conv2 14x14x64, pool2 7x7x64, fc1 512, fc2 10
ELEMENTS = 832 + 51_264 + 1_606_144 + 5_130


def test_layers_cost_what_their_shapes_say() -> None:
    conv1, pool1, conv2, pool2, fc1, fc2 = costs_of(LENET)
    assert sum(layer.gradient_bytes for layer in (conv1, pool1, conv2, pool2, fc1, fc2)) == 4 * ELEMENTS
    assert (conv1.input_bytes, conv1.output_bytes, conv1.kept_bytes) == (4 * 784, 4 * 25_088, 4 * 25_088)
    assert (pool1.output_bytes, pool1.kept_bytes) == (4 * 6272, 12 * 6272)  # eight bytes for each maximum's place
    assert (conv2.input_bytes, fc1.output_bytes, fc2.gradient_bytes) == (4 * 6272, 4 * 512, 4 * 5130)
    assert fc1.largest_bytes == 4 * 3136 * 512
    assert conv1.forward_s == pytest.approx(0.001 * 832 * 784 * 2 / costs_flops(), rel=0.1)


def costs_flops() -> int:
    assert LENET.architecture is not None
    return LENET.architecture.flops


@pytest.mark.parametrize(("optimiser", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)])
def test_data_parallel_training_needs(optimiser: str, states: int) -> None:
    """By hand, of a batch of 100: the peak is at the backward pass of the second convolution. The gradients of its output
    and of what its ReLU takes exist at once, and those of the first convolution's weights not yet.
    """
    (alone,) = memory_of(LENET, ParallelPlan(), optimiser=optimiser)
    weights, gradients = 4 * ELEMENTS, 4 * (ELEMENTS - 832)
    kept = 4 * 100 * (784 + 25_088 + 3 * 6272 + 12_544)
    logits = 4 * 100 * 10
    assert alone == Memory(weights, gradients, states * weights, kept + logits, 0, 2 * 4 * 100 * 12_544)
    (several,) = memory_of(LENET, ParallelPlan("ring", replicas=4), optimiser=optimiser)
    assert several.total == alone.total + weights  # DDP's buckets


def test_an_optimiser_that_updates_all_parameters_together_may_need_most() -> None:
    small = model("lenet:classes=10:channels=1", Compute(1, 0.1, 0.2))
    (together,), (each,) = (memory_of(small, ParallelPlan(), optimiser="adam", foreach=way) for way in (True, False))
    assert together.working == 4 * ELEMENTS and each.working == 2 * 4 * 3136 * 512


def part(weights: int, kept: int, moved: int) -> LayerCosts:
    return LayerCosts("layer", 1.0, 2.0, weights, weights, weights, kept, moved, moved)


def pipeline(schedule: PipelineSchedule, microbatches: int, stages: int, chunks: int = 1, **more: bool) -> ParallelPlan:
    return ParallelPlan("ring", 1, schedule, stages, microbatches, chunks, **more)


@pytest.mark.parametrize(
    ("schedule", "microbatches", "chunks", "held"),
    [
        (PipelineSchedule.GPIPE, 8, 1, [(8,)] * 4),
        (PipelineSchedule.ONE_F_ONE_B, 8, 1, [(4,), (3,), (2,), (1,)]),
        (PipelineSchedule.ONE_F_ONE_B, 2, 1, [(2,), (2,), (2,), (1,)]),
        (PipelineSchedule.ONE_AT_A_TIME, 1, 1, [(1,)] * 4),
        # (chunks - 1) stages + 2 (stages - 1 - stage) forward passes and one more, four of each chunk in turn.
        (PipelineSchedule.INTERLEAVED, 8, 2, [(7, 4), (5, 4), (4, 3), (4, 1)]),
        (PipelineSchedule.INTERLEAVED, 4, 2, [(4, 4), (4, 4), (4, 3), (4, 1)]),
    ],
)
def test_microbatches_under_way(
    schedule: PipelineSchedule, microbatches: int, chunks: int, held: list[tuple[int, ...]]
) -> None:
    plan = pipeline(schedule, microbatches, 4, chunks)
    assert [in_flight(plan, stage) for stage in range(4)] == held


def test_a_pipelines_stages_keep_what_is_under_way() -> None:
    """By hand: two stages of one layer each; 10 examples of each of two workers make 4 micro-batches of 5."""
    workload = model("lenet", Compute(10, 0.1, 0.2))
    cuts = [(part(1000, 100, 8),), (part(2000, 60, 8),)]
    gpipe, one = (
        memory_of(workload, pipeline(schedule, 4, 2), cuts, "sgd")
        for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    )
    # Inputs of 4 x 5 x 8 bytes; activations of 4 or 2 micro-batches; gradients that arrive, of all 4; working: 2 x 5 x 8.
    # From the second micro-batch on, gradients are added to: one more variable's, where all are still kept.
    assert gpipe[0] == Memory(1000, 1000, 0, 160 + 3 * 500, 160, 80 + 1000)
    assert one[0] == Memory(1000, 1000, 0, 160 + 2 * 500, 160, 80 + 1000)
    # The last stage's inputs arrive; it has its logits, of 5 x 8 bytes.
    assert one[1] == Memory(2000, 2000, 0, 300 + 40, 160, 80 + 2000)
    again = memory_of(workload, pipeline(PipelineSchedule.GPIPE, 4, 2, recompute=True), cuts, "sgd")
    assert again[0] == Memory(1000, 1000, 0, 160 + 500, 160, 80 + 1000)


def test_what_is_unknown_is_said() -> None:
    with pytest.raises(UnknownNameError, match="unknown optimiser 'lion'; legal are adam, adamw, momentum, sgd"):
        memory_of(LENET, ParallelPlan(), optimiser="lion")
    with pytest.raises(SimulationError, match="does not say its layers' outputs"):
        memory_of(bare(), ParallelPlan())


def test_a_part_of_a_pool_alone_needs_its_buffers() -> None:
    """VGG-11 for CIFAR-10 in eight parts: one has no parameters."""
    workload = model("vgg11:variant=cifar10", Compute(batch=64))
    plan = ParallelPlan.parse("interleaved:stages=4:microbatches=32/ring", 4)
    parts = parts_of_plan(workload, plan)
    assert [layer.name for part in parts for layer in part] == [layer.name for layer in workload.architecture.layers]  # type: ignore[union-attr]
    assert any(not sum(layer.weight_bytes for layer in part) for part in parts)
    assert len(memory_of_plan(workload, plan)) == 4
