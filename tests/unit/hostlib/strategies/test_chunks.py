"""Chunks of layers: the paper's partitions, its searches and its cost model, by the real code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hostlib.cli import main
from hostlib.errors import HostlibError, RunError
from hostlib.strategies.builtin.cgdp.cost_model import LayerCost, Search, partition, predict, search, without_overlap

# AlexNet's layers 1 to 8 with four GPUs, in ms: GPU-to-CPU copy and accumulation, CPU-to-GPU copy (table 3).
ACCUMULATION = (0.014 + 0.018, 0.066 + 0.155, 0.275 + 0.578, 0.174 + 0.465, 0.133 + 0.285, 12.146 + 13.074,
                3.156 + 4.441, 0.760 + 1.263)  # fmt: skip
BROADCAST = (0.007, 0.041, 0.123, 0.095, 0.064, 5.538, 2.568, 1.786)
RESNET = 152  # layers


def cost(backward: float, synchronisation: float = 0.0, accumulation: float = 0.0, broadcast: float = 0.0) -> LayerCost:
    return LayerCost(backward, synchronisation, accumulation, broadcast)


# ---- partitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "size", "chunks"),
    [
        (6, 1, ((6,), (5,), (4,), (3,), (2,), (1,))),
        # "If l mod k = 0, there are l/k - 1 chunks with the size k, layers l to k + 1, and k chunks with the size 1."
        (6, 2, ((6, 5), (4, 3), (2,), (1,))),
        (6, 3, ((6, 5, 4), (3,), (2,), (1,))),
        # "Else floor(l/k) chunks with the size k, and the remaining layers."
        (8, 3, ((8, 7, 6), (5, 4, 3), (2,), (1,))),
        (7, 4, ((7, 6, 5, 4), (3,), (2,), (1,))),
        (5, 5, ((5,), (4,), (3,), (2,), (1,))),
        (3, 9, ((3,), (2,), (1,))),
        (1, 1, ((1,),)),
    ],
)
def test_partitions_are_the_papers(layers: int, size: int, chunks: tuple[tuple[int, ...], ...]) -> None:
    assert partition(layers, size) == chunks


@given(st.integers(1, 300), st.integers(1, 400))
def test_every_layer_is_in_one_chunk_in_backward_order(layers: int, size: int) -> None:
    chunks = partition(layers, size)
    assert [layer for chunk in chunks for layer in chunk] == list(range(layers, 0, -1))
    whole = layers // size - 1 if layers % size == 0 else layers // size
    assert [len(chunk) for chunk in chunks[:whole]] == [size] * whole
    assert all(len(chunk) == 1 for chunk in chunks[whole:])
    assert len(chunks) - whole == (size if layers % size == 0 else layers % size)


def test_resnet_152_in_chunks_of_nine() -> None:
    """The size that the paper's search found."""
    chunks = partition(RESNET, 9)
    assert (len(chunks), len(chunks[0]), chunks[15], chunks[16]) == (16 + 8, 9, tuple(range(17, 8, -1)), (8,))


@pytest.mark.parametrize(("layers", "size"), [(0, 1), (5, 0), (-1, 2)])
def test_no_layers_and_no_size_are_refused(layers: int, size: int) -> None:
    with pytest.raises(RunError, match="must be at least 1"):
        partition(layers, size)


# ---- the search ------------------------------------------------------------------------------------------------------


def lapses(best: int, upto: int = 300) -> dict[int, float]:
    """Seconds that are least for one size."""
    return {size: 1.0 + abs(size - best) / 100 for size in range(1, upto)}


@pytest.mark.parametrize(
    ("step", "reach", "best", "tried"),
    [
        # Section 5.2.6: best at iteration 90 with 9, stopped at iteration 150, "ran 6 times after the iteration 90".
        (10, 5, 9, [*range(1, 11), 20, 30, 40, 50, 60]),
        # With range = 10 it found 20; "in all trainings the algorithm finished in at most 21 iterations".
        (10, 10, 20, [*range(1, 11), *range(20, 121, 10)]),
        (1, 3, 1, [1, 2, 3, 4]),
        (3, 2, 6, [1, 2, 3, 6, 9, 12]),
    ],
)
def test_searches_are_the_papers(step: int, reach: int, best: int, tried: list[int]) -> None:
    done = search(lapses(best), step, reach, interval=10, layers=RESNET)
    assert [trial.chunk for trial in done.trials] == tried
    assert done.best == done.chunk == best
    assert done.over


def test_a_best_size_below_step_costs_the_steps_to_it_and_range_more() -> None:
    """Section 4.2: "the algorithm may run another (step - best_chunk + range) times before deciding to stop"."""
    step, reach, best = 10, 5, 3
    done = search(lapses(best), step, reach, interval=10)
    assert len(done.trials) - best == step - best + reach


def test_a_tie_keeps_the_smaller_size() -> None:
    assert search(dict.fromkeys(range(1, 100), 1.0), 2, 2, 10).best == 1


def test_sizes_that_are_the_same_as_one_are_not_tried() -> None:
    assert [trial.chunk for trial in search(lapses(4), 10, 5, 10, layers=8).trials] == [1, 2, 3, 4, 5, 6, 7]
    assert [trial.chunk for trial in search(lapses(1), 10, 5, 10, layers=1).trials] == [1]


def test_the_size_stays_after_the_search() -> None:
    made = Search(step=1, range=1)
    for lapse_s in (3.0, 1.0, 2.0):
        assert not made.over
        made.measured(lapse_s)
    assert (made.over, made.chunk) == (True, 2)


@pytest.mark.parametrize("fields", [{"step": 0}, {"range": 0}, {"interval": -1}])
def test_a_search_that_cannot_be_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(RunError, match=f"{next(iter(fields))} must be at least 1"):
        Search(**{"step": 1, "range": 1, **fields})


def test_a_size_without_a_time_is_named() -> None:
    with pytest.raises(RunError, match="needs the time of chunk size 3, which is missing"):
        search({1: 1.0, 2: 0.5}, 10, 5, 10)


# ---- the cost model --------------------------------------------------------------------------------------------------


def test_equation_1_by_hand() -> None:
    costs = [cost(4, 1, 2, 3), cost(5, 1, 10, 20), cost(6, 1, 1, 1)]
    predicted = predict(costs, partition(3, 1))
    assert predicted.done == (6 + 1 + 2, 6 + 1 + 5 + 1 + 30, 6 + 1 + 5 + 1 + 4 + 1 + 5)
    assert predicted.total == 43  # layer 2's: the maximum is not always layer 1's
    assert predicted.overhead == 43 - 15
    assert without_overlap(costs) == 15 + 5 + 30 + 2


def test_equation_2_holds_where_layer_1_ends_last() -> None:
    """AlexNet: layers' gradients are hidden, but for layer 1's and the synchronisations."""
    sync = 0.002
    costs = [cost(14, sync, a, b) for a, b in zip(ACCUMULATION, BROADCAST, strict=True)]
    predicted = predict(costs, partition(8, 1))
    assert predicted.total == predicted.done[-1]
    assert predicted.overhead == pytest.approx(8 * sync + ACCUMULATION[0] + BROADCAST[0])
    assert without_overlap(costs) - predicted.backward == pytest.approx(sum(ACCUMULATION) + sum(BROADCAST))


def test_alexnets_overhead_is_that_of_layer_1_alone() -> None:
    """Table 3's figures in the model give tens of microseconds, as table 2 measured (21.8), where all that the original
    adds up at the end is tens of milliseconds (20 + 23)."""
    costs = [cost(104 / 8, 0, a, b) for a, b in zip(ACCUMULATION, BROADCAST, strict=True)]
    assert 0.0218 / 2 < predict(costs, partition(8, 1)).overhead < 0.0218 * 2
    assert 43 / 1.2 < without_overlap(costs) - 104 < 43 * 1.2


def test_chunks_save_synchronisations_and_cost_overlap() -> None:
    """Section 4.1: the trade-off, on a deep and flat network."""
    costs = [cost(1, 0.5, 0.2, 0.2) for _ in range(RESNET)]
    totals = {size: predict(costs, partition(RESNET, size)).total for size in (1, 9, 75)}
    assert totals[9] < totals[1]
    assert totals[9] < totals[75]
    assert predict(costs, partition(RESNET, 1)).overhead > without_overlap(costs) - RESNET


# ---- the command -----------------------------------------------------------------------------------------------------


def hostlib(*words: str, stdin: str | None = None) -> str:
    done = CliRunner().invoke(main, ["cgdp", *words], input=stdin, catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_command_prints_chunks() -> None:
    assert json.loads(hostlib("chunks", "--layers", "8", "--chunk", "3", "--json")) == [[8, 7, 6], [5, 4, 3], [2], [1]]
    assert "8 .. 6" in hostlib("chunks", "--layers", "8", "--chunk", "3")


def test_a_models_layers_are_its_trained_ones() -> None:
    """AlexNet's pools are none: the paper's 8 layers remain."""
    assert json.loads(hostlib("chunks", "alexnet", "--chunk", "3", "--json")) == [[8, 7, 6], [5, 4, 3], [2], [1]]


@pytest.mark.parametrize("words", [(), ("alexnet", "--layers", "8")])
def test_chunks_are_of_a_model_or_of_layers(words: tuple[str, ...]) -> None:
    with pytest.raises(HostlibError, match="give a MODEL or --layers N"):
        hostlib("chunks", *words, "--chunk", "2")


def test_the_command_prints_a_search() -> None:
    times = json.dumps(lapses(9))
    printed = json.loads(hostlib("search", "--times", "-", "--json", stdin=times))
    assert (printed["best"], printed["iterations"], len(printed["trials"])) == (9, 150, 15)
    assert printed["trials"][8] == {"iteration": 90, "chunk": 9, "lapse_s": 1.0, "best": 9}
    assert "chunk size 9" in hostlib("search", "--times", "-", stdin=times)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', '{"1": 0}', "{}"])
def test_times_that_are_none_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(HostlibError) as refused:
        hostlib("search", "--times", "-", stdin=text)
    assert "\n" not in str(refused.value)


def test_a_number_of_layers_that_is_none_is_said_as_it_was_given() -> None:
    with pytest.raises(HostlibError, match=r"--layers must be at least 1, not -4$"):
        hostlib("chunks", "--layers", "-4", "--chunk", "1")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for words in (("search", "--times", "none.json"), ("model", "none.trace")):
        with pytest.raises(HostlibError, match=r"none\.\w+ cannot be read"):
            hostlib(*words)


TRACE = """
[layers]
layer,forward_s,backward_s
conv,0.001,0.002
pool,0.001,0.003
fc,0.001,0.004
[parameters]
parameter,bytes,layer,trained
conv/weight,1000,conv,yes
fc/weight,1000000,fc,yes
[events]
time_s,parameter,bytes,source,destination
0,fc/weight,1000000,worker0,server0
0.005,conv/weight,1000,worker0,server0
"""


def test_the_command_prints_the_cost_model_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "small.trace"
    path.write_text(TRACE)
    rates = ("--sync", "100us", "--accumulation", "1GB/s", "--broadcast", "2GB/s")
    printed = json.loads(hostlib("model", str(path), *rates, "--json"))
    (row,) = printed["chunks"]
    # fc: 4 ms + 0.1, then 1 ms + 0.5 ms for its megabyte; conv: pool's 3 ms and its own 2 ms later.
    assert row["done_s"] == pytest.approx([0.0056, 0.0092 + 1.5e-6])
    assert printed["without_overlap_s"] == pytest.approx(0.009 + 0.0015 + 1.5e-6)
    assert "speed-up" in hostlib("model", str(path), *rates)
    with pytest.raises(HostlibError, match="--chunk takes numbers of layers"):
        hostlib("model", str(path), "--chunk", "1,x")
