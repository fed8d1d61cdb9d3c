"""RALP's profiler: skewness, where a model may be cut, what it costs, and its errors."""

from __future__ import annotations

import pytest

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.models.layer_info import Kind, LayerInfo
from hostlib.strategies.builtin.ralp.placement import Placement, place, shares, skewness, volume


def layers(*each: tuple[Kind, int, int]) -> tuple[LayerInfo, ...]:
    """Of (kind, parameters, output), named kind and index."""
    return tuple(
        LayerInfo(index, f"{kind}{index}", kind, params, output, 0, None, ())
        for index, (kind, params, output) in enumerate(each, start=1)
    )


NET = layers(("conv", 10, 400), ("pool", 0, 100), ("conv", 30, 200), ("pool", 0, 50), ("fc", 900, 20), ("fc", 60, 10))
WIDE = layers(("fc", 900, 20), ("fc", 60, 10), ("fc", 40, 10))


def obstacles(placement: Placement) -> list[str | None]:
    return [cut.obstacle for cut in placement.cuts]


def test_skewness_is_of_indices_weighted_by_parameters() -> None:
    # One in a hundred at index 1, the others at 2: a Bernoulli distribution with p = 0.99.
    p = 0.99
    expected = (1 - 2 * p) / (p * (1 - p)) ** 0.5
    assert skewness(layers(("conv", 1, 1), ("fc", 99, 1))) == pytest.approx(expected)
    assert skewness(layers(("conv", 99, 1), ("fc", 1, 1))) == pytest.approx(-expected)
    assert skewness(layers(("conv", 5, 1), ("pool", 0, 1), ("fc", 5, 1))) == pytest.approx(0)


def test_skewness_of_a_single_place_is_none() -> None:
    assert skewness(layers(("pool", 0, 1), ("fc", 7, 1))) == 0
    assert skewness(layers(("pool", 0, 1))) == 0


def test_nothing_is_cut_before_the_last_convolution() -> None:
    assert obstacles(place(NET)) == ["convolutions follow"] * 2 + [None] * 4


def test_the_cut_is_where_outputs_and_kept_parameters_are_fewest() -> None:
    placement = place(NET, batch=2)
    assert [cut.cost for cut in placement.cuts] == [810, 210, 440, 140, 980, 1020]
    assert placement.cheapest is placement.split is placement.cuts[3]
    assert placement.partition
    assert "the layers after pool4 go to the server" in placement.verdict
    assert "sends 140 elements instead of 1,000" in placement.verdict


def test_larger_batches_move_the_cut_back() -> None:
    # 40 + 50 b elements behind pool4, 1,000 + 10 b behind fc6.
    assert place(NET, batch=23).partition
    moved = place(NET, batch=25)
    assert moved.split is None
    assert not moved.partition
    assert "no possible split sends less" in moved.verdict


def test_the_threshold_decides() -> None:
    placement = place(NET, threshold=-10)
    assert not placement.partition
    assert placement.split is placement.cuts[3]  # where it would be, if it were forced
    assert "is not below the threshold -10" in placement.verdict
    assert not place(WIDE).partition  # most parameters come first
    assert place(WIDE).skewness > 0


def test_without_parameters_before_it_a_cut_leaves_the_workers_nothing() -> None:
    placement = place(layers(("pool", 0, 1), ("fc", 10, 5), ("fc", 90, 5)))
    assert placement.cuts[0].obstacle == "no parameters before this point"
    assert placement.split is placement.cuts[1]


def test_a_model_that_ends_in_a_convolution_is_not_cut() -> None:
    placement = place(layers(("conv", 10, 4), ("conv", 90, 4), ("pool", 0, 1)))
    assert placement.skewed
    assert placement.split is None


def test_behind_a_layer_of_ones_own_choice() -> None:
    placement = place(NET)
    assert placement.behind("conv1") is placement.cuts[0]
    with pytest.raises(UnknownNameError, match="unknown layer 'fc7'; legal are conv1, conv3, fc5, fc6, pool2, pool4"):
        placement.behind("fc7")
    with pytest.raises(HostlibError, match="cut behind fc6: no layer after it has parameters"):
        placement.behind("fc6")
    with pytest.raises(HostlibError, match="cut behind pool1: no layer before it has parameters"):
        place(layers(("pool", 0, 1), ("fc", 10, 5))).behind("pool1")


@pytest.mark.parametrize(
    ("made", "batch", "why"),
    [
        (layers(("pool", 0, 1)), 1, "none of its layers has parameters"),
        ((), 1, "none of its layers has parameters"),
        (NET, 0, "--batch must be at least 1, not 0"),
    ],
)
def test_what_has_no_place_is_refused(made: tuple[LayerInfo, ...], batch: int, why: str) -> None:
    with pytest.raises(HostlibError, match=why):
        place(made, batch)


def test_traffic_of_a_job() -> None:
    traffic = volume(place(NET, batch=2), workers=8)
    assert (traffic.ring, traffic.ralp) == (2 * 1000 * 7, 2 * 8 * 140)
    with pytest.raises(HostlibError, match="--workers must be at least 1, not 0"):
        volume(place(NET), 0)


def test_half_the_gpus_or_all() -> None:
    assert [(each.name, each.workers, each.servers) for each in shares(16)] == [
        ("parameter servers", 8, 8),
        ("Horovod", 16, 0),
        ("RALP-H", 8, 1),
        ("RALP-N", 15, 1),
    ]
    with pytest.raises(HostlibError, match="--gpus must be at least 2"):
        shares(1)


def test_a_threshold_is_a_number() -> None:
    with pytest.raises(HostlibError, match="the threshold must be a number, not nan"):
        place(NET, threshold=float("nan"))
