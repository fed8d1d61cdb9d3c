"""Pipelines' options, workers' places, and the bubble's formula."""

from __future__ import annotations

import pytest

from hostlib.errors import HostlibError
from hostlib.pipelines.bubble import bubble_share, iteration_ns
from hostlib.pipelines.pipeline_options import PipelineOptions, microbatch_size, placement, worker_of
from hostlib.strategies.strategy import choose, find_strategy


def test_every_worker_has_one_place() -> None:
    places = [placement(worker, 6, 2) for worker in range(6)]
    assert [(each.stage, each.replica) for each in places] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert all(each.replicas == 3 for each in places)
    assert [worker_of(each.stage, each.replica, 3) for each in places] == list(range(6))
    assert placement(3, 4, 1).replica == 3


def test_a_pipelines_batch_is_its_workers() -> None:
    assert microbatch_size(PipelineOptions(stages=2, microbatches=4), 16) == 8
    with pytest.raises(HostlibError, match="2 workers x 5 examples cannot be cut into 4 equal micro-batches"):
        microbatch_size(PipelineOptions(stages=2, microbatches=4), 5)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpipe:stages=1", "stages must be at least 2, not 1"),
        ("gpipe:microbatches=0", "microbatches must be at least 1, not 0"),
        ("1f1b:stages=8:microbatches=4", "1f1b needs at least as many micro-batches as its 8 stages, not 4"),
        ("interleaved:chunks=1", "chunks must be at least 2, not 1"),
        ("interleaved:stages=4:microbatches=6", "must be a multiple of its 4 stages, not 6"),
        ("modelparallel:microbatches=2", "option of modelparallel"),
        ("gpipe/ps", "does not go with ps: each stage would need parameter servers of its own; legal are .*ring"),
    ],
)
def test_illegal_options_are_refused(name: str, why: str) -> None:
    with pytest.raises(HostlibError, match=why) as refused:
        choose(name)
    assert "\n" not in str(refused.value)


def test_workers_make_whole_pipelines() -> None:
    choose("gpipe:stages=3").require_workers(6)
    choose("ring").require_workers(5)
    with pytest.raises(HostlibError, match="pipelines of 3 stages need a multiple of as many workers, not 4"):
        choose("gpipe:stages=3").require_workers(4)
    assert find_strategy("modelparallel:stages=4").stages == 4
    assert find_strategy("modelparallel").options.microbatches == 1


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks", "share"),
    [(4, 8, 1, 3 / 11), (4, 8, 2, 1.5 / 9.5), (2, 1, 1, 1 / 2), (8, 8, 4, 1.75 / 9.75)],
)
def test_the_bubble_is_what_is_not_computed(stages: int, microbatches: int, chunks: int, share: float) -> None:
    assert bubble_share(stages, microbatches, chunks) == pytest.approx(share)
    whole = iteration_ns(10, 20, stages, microbatches, chunks)
    assert 1 - microbatches * 30 / whole == pytest.approx(bubble_share(stages, microbatches, chunks))
    assert iteration_ns(10, 20, stages, microbatches, chunks, recompute=True) == pytest.approx(whole * 4 / 3)
