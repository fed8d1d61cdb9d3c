"""Poseidon's coordinator: the paper's worked example, what it chooses for real models, and what nodes carry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.layers import LayerInfo
from hostlib.poseidon import (
    Cost,
    InformationBook,
    adam_cost,
    best_scheme,
    cheaper,
    costs,
    mechanism_cost,
    ps_cost,
    sfb_cost,
)
from hostlib.registry import find
from hostlib.traffic import Synchronisation, Traffic, per_node

SQUARE = (4096, 4096)


def connected(name: str, outputs: int, inputs: int, rows: int = 1) -> LayerInfo:
    """A fully connected layer that `rows` vectors of each example go through."""
    members = (f"{name}.weight", f"{name}.bias")
    return LayerInfo(
        1, name, "fc", outputs * (inputs + 1), rows * outputs, rows * 2 * outputs * inputs, (outputs, inputs), members
    )


CONVOLUTION = LayerInfo(1, "conv", "conv", 1792, 64 * 224 * 224, 2 * 27 * 64 * 224 * 224, None, ("conv.weight",))
POOL = LayerInfo(2, "pool", "pool", 0, 64 * 112 * 112, 0, None, ())
FC = connected("fc", *SQUARE)
BOOK = InformationBook((CONVOLUTION, POOL, FC), 8, 8, 32)


def test_the_papers_example() -> None:
    """Section 3.2: M = N = 4096, K = 32, eight nodes that are worker and server."""
    assert ps_cost(4096 * 4096, 8, 8) == Cost(33_554_432, 33_554_432, 58_720_256)
    assert sfb_cost(SQUARE, 32, 8) == Cost(None, 3_670_016, 3_670_016)
    assert costs(FC, BOOK) == {"PS": 58_720_256, "SFB": 3_670_016}
    assert best_scheme(FC, BOOK) == "SFB"


def test_adams_busiest_nodes() -> None:
    pushed, matrix = 32 * 8192, 4096 * 4096
    assert adam_cost(SQUARE, 32, 8) == Cost(8 * matrix + 8 * pushed, pushed + matrix, 7 * (matrix + pushed))


def test_what_is_no_matrix_goes_by_servers() -> None:
    assert best_scheme(CONVOLUTION, BOOK) == "PS"
    assert costs(CONVOLUTION, BOOK)["SFB"] is None
    assert [layer.name for layer in BOOK.trained] == ["conv", "fc"]


@pytest.mark.parametrize(("batch", "scheme"), [(4, "SFB"), (5, "PS")])
def test_a_tie_goes_to_sfb(batch: int, scheme: str) -> None:
    """16 x 16 on two nodes: PS 2 * 256 * 2 / 2 = 512 parameters, SFB 2 * batch * 32."""
    book = InformationBook((), 2, 2, batch * 2)
    assert costs(connected("fc", 16, 16), book)["PS"] == 512
    assert best_scheme(connected("fc", 16, 16), book) == scheme


def test_every_token_has_its_factors() -> None:
    assert BOOK.factors(connected("fc", 4096, 4096, rows=128)) == 32 * 128
    assert best_scheme(connected("fc", 4096, 4096, rows=128), BOOK) == "PS"


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_mechanism_costs_what_its_schedule_carries(workers: int) -> None:
    even = find(f"ps:servers={workers}:assign=even:colocated")
    assert mechanism_cost(even, workers, 4096 * 4096) == ps_cost(4096 * 4096, workers, workers).both
    assert mechanism_cost(find("ring"), workers, 4096 * 4096) == ps_cost(4096 * 4096, workers, workers).both
    assert mechanism_cost(find("gloo"), workers, 4096 * 4096) == ps_cost(4096 * 4096, workers, workers).both
    assert mechanism_cost(find("inagg+mcast"), workers, 4096 * 4096) == 2 * 4096 * 4096


def test_with_the_fabrics_help_factors_pay_less_often() -> None:
    chosen = {
        name: cheaper((1000, 1024), 80, 8, mechanism_cost(find(name), 8, 1000 * 1024))
        for name in ("ring", "inagg+mcast")
    }
    assert chosen == {"ring": "SFB", "inagg+mcast": "PS"}


def test_the_book_knows_its_layers() -> None:
    assert BOOK.query("fc") is FC
    with pytest.raises(UnknownNameError, match=r"unknown layer 'fc9'; legal are conv, fc"):
        BOOK.query("fc9")
    with pytest.raises(HostlibError, match="workers must be at least 1, not 0"):
        replace(BOOK, workers=0)


SCHEMES: tuple[Synchronisation, ...] = ("ps", "sfb", "adam")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nodes_carry_what_table_1_says(scheme: Synchronisation) -> None:
    book = InformationBook((connected("fc", *SQUARE),), 8, 8, 32)
    biases = 4096  # which table 1 leaves out
    both = {
        "ps": ps_cost(4096 * 4096 + biases, 8, 8).both,
        "sfb": sfb_cost(SQUARE, 32, 8).both,
        "adam": adam_cost(SQUARE, 32, 8).both + 7 * biases,
    }
    assert busiest(per_node(book, scheme)) == pytest.approx(4 * both[scheme])
    server = {
        "ps": ps_cost(4096 * 4096 + biases, 8, 8).server,
        "adam": (adam_cost(SQUARE, 32, 8).server or 0) + 8 * biases,
    }
    if scheme in server:
        assert busiest(per_node(book, scheme, colocated=False)) == pytest.approx(4 * server[scheme])


def busiest(nodes: dict[str, Traffic]) -> float:
    return max(each.sent + each.received for each in nodes.values())
