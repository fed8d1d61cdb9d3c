"""The partitioner against all possible cuts, and against cases worked by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from hostlib.errors import HostlibError
from hostlib.pipelines.partitioner import LayerCost, Link, partition, partition_with_replicas


def chain(*passes: float, activation: float = 0, parameters: float = 0) -> list[LayerCost]:
    """Layers whose forward pass is a third of both."""
    return [LayerCost(each / 3, 2 * each / 3, activation, parameters) for each in passes]


def random_chain(numbers: random.Random, count: int) -> list[LayerCost]:
    return [
        LayerCost(numbers.randint(1, 9), numbers.randint(1, 9), numbers.randint(0, 12), numbers.randint(0, 30))
        for _ in range(count)
    ]


def test_the_slowest_stage_is_as_fast_as_possible() -> None:
    cut = partition(chain(3, 3, 3, 9), 2)
    assert cut.cuts == (3,) and cut.slowest_ns == pytest.approx(9)
    assert partition(chain(3, 3, 3, 9), 4).cuts == (1, 2, 3)
    assert partition(chain(3, 3, 3, 9), 1).cuts == ()


def test_a_cut_avoids_a_transfer_that_is_slower_than_the_imbalance() -> None:
    layers = chain(3, 3, 3, 3)
    layers[1] = LayerCost(1, 2, 100, 0)
    assert partition(layers, 2).cuts == (2,)
    beside = partition(layers, 2, Link(bytes_per_ns=10))  # 20 ns there and back
    assert beside.cuts in ((1,), (3,)) and beside.slowest_ns == pytest.approx(9)


def test_of_equal_cuts_the_one_with_fewer_bytes() -> None:
    layers = [LayerCost(1, 0, size, 0) for size in (8, 2, 4, 0)] + [LayerCost(20, 0, 0, 0)]
    assert partition(layers, 3).cuts == (2, 4) and partition(layers, 3).slowest_ns == 20


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cut_is_better(seed: int) -> None:
    numbers = random.Random(seed)
    layers = random_chain(numbers, numbers.randint(2, 8))
    stages = numbers.randint(1, len(layers))
    link = Link(bytes_per_ns=numbers.choice([0.5, 1, 4]), latency_ns=numbers.choice([0, 1]))

    def slowest(cuts: tuple[int, ...]) -> float:
        bounds = (0, *cuts, len(layers))
        spans = [sum(x.forward_ns + x.backward_ns for x in layers[a:b]) for a, b in itertools.pairwise(bounds)]
        return max(*spans, *(2 * link.transfer_ns(layers[cut - 1].activation_bytes) for cut in cuts), 0)

    found = partition(layers, stages, link)
    assert len(found.stages) == stages and found.slowest_ns == pytest.approx(slowest(found.cuts))
    assert found.slowest_ns == pytest.approx(
        min(slowest(cuts) for cuts in itertools.combinations(range(1, len(layers)), stages - 1))
    )


@pytest.mark.parametrize("seed", range(10))
def test_no_other_choice_of_replicas_is_better(seed: int) -> None:
    numbers = random.Random(seed)
    layers = random_chain(numbers, numbers.randint(1, 5))
    workers = numbers.randint(1, 5)
    link = Link(bytes_per_ns=numbers.choice([0.5, 4]), latency_ns=numbers.choice([0, 0.25]))

    def of_stage(first: int, end: int, replicas: int) -> float:
        both = sum(x.forward_ns + x.backward_ns for x in layers[first:end])
        weights = sum(x.parameter_bytes for x in layers[first:end])
        return max(both / replicas, 2 * (replicas - 1) * link.transfer_ns(weights / replicas))

    def best(end: int, left: int) -> float:
        whole = of_stage(0, end, left)
        split = [
            max(
                best(first, left - replicas),
                2 * link.transfer_ns(layers[first - 1].activation_bytes),
                of_stage(first, end, replicas),
            )
            for first in range(1, end)
            for replicas in range(1, left)
        ]
        return min([whole, *split])

    found = partition_with_replicas(layers, workers, link)
    assert sum(stage.replicas for stage in found.stages) == workers
    assert found.slowest_ns == pytest.approx(best(len(layers), workers))


def test_heavy_weights_are_not_replicated_and_light_ones_are() -> None:
    """As PipeDream finds for VGG: convolutions in replicas, fully connected layers on one worker."""
    layers = [LayerCost(10, 20, 1, 1), LayerCost(3, 7, 0, 1000)]
    found = partition_with_replicas(layers, 4, Link(bytes_per_ns=10))
    assert [(stage.first, stage.end, stage.replicas) for stage in found.stages] == [(0, 1, 3), (1, 2, 1)]
    assert found.slowest_ns == pytest.approx(10)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(HostlibError, match="2 layers cannot be cut into 3 stages"):
        partition(chain(1, 1), 3)
    with pytest.raises(HostlibError, match="at least 1 stage, not 0"):
        partition(chain(1, 1), 0)
