"""Poseidon's coordinator: the paper's worked example, what it chooses for real models, and what nodes carry."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from hostlib.cli import main
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.mechanisms.mechanism import find
from hostlib.models.inspection import load
from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.builtin.poseidon.traffic import LinkTraffic, Synchronisation, per_node
from hostlib.strategies.common.sync_cost import (
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


def busiest(nodes: dict[str, LinkTraffic]) -> float:
    return max(each.sent + each.received for each in nodes.values())


# ---- real models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [8, 16, 32])
@pytest.mark.parametrize(
    ("model", "batch", "chosen"),
    [
        ("vgg19", 32, {(4096, 25088): "SFB", (4096, 4096): "SFB", (1001, 4096): "SFB"}),
        ("vgg19_22k", 32, {(4096, 25088): "SFB", (4096, 4096): "SFB", (21841, 4096): "SFB"}),
        ("googlenet", 128, {(1001, 1024): "PS"}),  # Section 5.2: "Poseidon reduces to PS when training GoogLeNet"
    ],
)
def test_the_papers_networks(model: str, batch: int, chosen: dict[tuple[int, int], str], nodes: int) -> None:
    """Table 3's batch sizes; nodes as in figure 5."""
    book = InformationBook(load(model).layers, nodes, nodes, batch)
    assert {layer.matrix: best_scheme(layer, book) for layer in book.layers if layer.matrix} == chosen
    assert {best_scheme(layer, book) for layer in book.trained if layer.kind == "conv"} == {"PS"}


def test_figure_10() -> None:
    """VGG19 on eight nodes: servers have equal loads, Adam's owners of large layers carry several times the others', and
    hybrid communication is balanced and the smallest."""
    book = InformationBook(load("vgg19").layers, 8, 8, 32)
    loads = {scheme: [t.sent + t.received for t in per_node(book, scheme).values()] for scheme in FIGURE_10}
    for even in ("ps", "hybcomm"):
        assert max(loads[even]) == pytest.approx(min(loads[even]))
    assert max(loads["adam"]) > 4 * min(loads["adam"])
    assert max(loads["hybcomm"]) < max(loads["ps"]) / 3 < max(loads["adam"])


FIGURE_10: tuple[Synchronisation, ...] = ("ps", "adam", "hybcomm")


def test_the_command_says_which_and_what_it_costs() -> None:
    printed = json.loads(command("poseidon", "vgg19", "--workers", "8", "--servers", "8", "--batch", "32", "--json"))
    cost = printed.pop("costs")
    assert printed.keys() == cost.keys()
    assert set(printed.values()) == {"PS", "SFB"}
    assert printed["classifier.2"] == "SFB"
    assert cost["classifier.2"] == {"PS": 58_720_256, "SFB": 3_670_016}
    assert next(iter(cost.values()))["SFB"] is None


def test_the_command_as_tables() -> None:
    assert "58,720,256" in command("poseidon", "vgg19", "--workers", "8")
    assert "worker7" in command("poseidon", "vgg19", "--traffic")


def command(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
