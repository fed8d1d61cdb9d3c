"""Orders of pipelines' passes: against torch.distributed.pipelining's own, and against bubbles worked by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.pipelines.pass_order import Pass, PassOrder, drawing, pass_order, times

SIZES = [(2, 2), (2, 5), (3, 7), (4, 4), (4, 8), (8, 16)]


def torchs_passes(schedule: str, stages: int, stage: int, microbatches: int) -> tuple[Pass, ...]:
    """What torch's runtime has a stage do."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    done: list[Pass] = []
    running = MagicMock(_n_microbatches=microbatches, _num_stages=stages)
    running._check_inputs.return_value = [()] * microbatches, [{}] * microbatches
    running._stage.stage_index = stage
    for pass_, ops in (("forward", "fwd"), ("backward", "bwd")):
        for way in ("send", "recv"):
            getattr(running._stage, f"get_{ops}_{way}_ops").return_value = []
        computes = getattr(running._stage, f"{pass_}_one_chunk")
        computes.side_effect = lambda m, *_, back=pass_ == "backward", **__: done.append(Pass(back, stage, m))
    kind = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}[schedule]
    kind._step_microbatches(running)
    return tuple(done)


def torchs_interleaved(stages: int, stage: int, microbatches: int, chunks: int) -> tuple[Pass, ...]:
    """What torch's interleaved schedule has a worker do, without its idle steps."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    rounds = max(1, microbatches // stages)
    made = SimpleNamespace(
        _n_microbatches=microbatches,
        n_local_stages=chunks,
        pp_group_size=stages,
        microbatches_per_round=microbatches // rounds,
    )
    actions = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations(made, stage)
    forward = schedules._ComputationType.FORWARD
    return tuple(Pass(a.computation_type is not forward, a.stage_index, a.microbatch_index) for a in actions if a)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_the_order_is_torchs(schedule: str, stages: int, microbatches: int) -> None:
    made = pass_order(schedule, stages, microbatches)
    assert made.workers == tuple(torchs_passes(schedule, stages, stage, microbatches) for stage in range(stages))


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize(
    ("stages", "microbatches"), [*((s, m) for s, m in SIZES if m % s == 0), (2, 1), (4, 3), (4, 10)]
)
def test_the_interleaved_order_is_torchs(stages: int, microbatches: int, chunks: int) -> None:
    made = pass_order("interleaved", stages, microbatches, chunks)
    assert made.workers == tuple(torchs_interleaved(stages, stage, microbatches, chunks) for stage in range(stages))


def span(order: PassOrder, forward: float = 1, backward: float = 2) -> float:
    done = times(order, [forward] * order.parts, [backward] * order.parts)
    return max(end for _, end in done.values())


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_the_bubble_is_as_in_the_papers(stages: int, microbatches: int) -> None:
    """Of m micro-batches, S - 1 more fit into a step; with v chunks, each of them is 1/v as long."""
    whole = microbatches + stages - 1
    assert span(pass_order("gpipe", stages, microbatches)) == 3 * whole
    assert span(pass_order("1f1b", stages, microbatches)) == 3 * whole
    assert span(pass_order("modelparallel", stages, microbatches)) == 3 * stages
    if microbatches % stages == 0:
        chunks = 4
        shorter = span(pass_order("interleaved", stages, microbatches, chunks), 1 / chunks, 2 / chunks)
        assert shorter == pytest.approx(3 * (microbatches + (stages - 1) / chunks))


def test_1f1b_keeps_fewer_microbatches_than_gpipe() -> None:
    def most_kept(order: PassOrder, worker: int) -> int:
        kept = most = 0
        for each in order.workers[worker]:
            kept += -1 if each.backward else 1
            most = max(most, kept)
        return most

    for stage in range(4):
        assert most_kept(pass_order("gpipe", 4, 16), stage) == 16
        assert most_kept(pass_order("1f1b", 4, 16), stage) == 4 - stage


def test_fewer_microbatches_than_stages() -> None:
    for schedule in ("gpipe", "1f1b", "interleaved"):
        order = pass_order(schedule, 4, 2, 2 if schedule == "interleaved" else 1)
        assert len(times(order, [1] * order.parts, [1] * order.parts)) == 2 * 2 * order.parts


def test_drawing() -> None:
    assert drawing(pass_order("1f1b", 2, 3)) == [
        "stage0  F0 F1       B0--- F2 B1---    B2---",
        "stage1     F0 B0--- F1 B1--- F2 B2---",
    ]
    assert drawing(pass_order("interleaved", 2, 2, 2))[0].startswith("stage0  F0a F1a F0b F1b")


def test_wrong_orders_are_found() -> None:
    order = pass_order("gpipe", 2, 2)
    first, second = order.workers
    with pytest.raises(HostlibError, match="worker 1 must do F0 once"):
        times(replace(order, workers=(first, second[1:])), [1, 1], [1, 1])
    with pytest.raises(HostlibError, match="worker 0 must do"):
        times(replace(order, workers=(second, first)), [1, 1], [1, 1])
    with pytest.raises(HostlibError, match="worker 0 waits forever to begin B0"):
        times(replace(order, workers=(first, second[::-1])), [1, 1], [1, 1])


def test_impossible_numbers() -> None:
    with pytest.raises(HostlibError, match="7 micro-batches cannot be divided into 3 equal rounds"):
        pass_order("interleaved", 2, 7, 2)
    with pytest.raises(HostlibError, match="microbatches must be at least 1, not 0"):
        pass_order("gpipe", 2, 0)
    with pytest.raises(UnknownNameError, match="gpipe"):
        pass_order("zigzag", 2, 2)
