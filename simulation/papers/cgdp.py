"""Tables and figures of "Involving CPUs into Multi-GPU Deep Learning" (CGDP).

The paper prints the passes of AlexNet alone (Table 2), and what the host costs it (Table 3). Other networks compute at
ASSUMED_TFLOPS, and their gradients cost the host as much per byte as AlexNet's. Nothing crosses a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from hostlib.strategies.builtin.cgdp.cost_model import Search, costs_of, partition, predict, search
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Trace
from simulation.models import published_times
from simulation.models.architectures import build
from simulation.models.described_model import layers_of
from simulation.models.synthetic_trace import spread
from simulation.papers import published_numbers
from simulation.papers.cell import ASSUMED, COUNTED, FITTED, Cell, Table, without_links
from simulation.papers.semantics import papers_network, papers_workload
from simulation.simulator.play import Job, Outcome, play

ASSUMED_TFLOPS = 10.0
ASSUMED_SYNC_US = 10.0  # handing over a chunk
GPUS = published_times.CGDP_GPUS
CHUNKS = (1, 2, 3, 4, 6, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
HANDING_OVER, RATES = "handing over", "the host's rates"


@cache
def _alexnet() -> Trace:
    phases = published_times.CGDP_2_MS
    return spread(build("alexnet"), phases["forward"] / 1e3, phases["backward"] / 1e3, first_backward=True)


@cache
def _trace(model: str, batch: int, tflops: float) -> Trace:
    architecture = build(model)
    forward_s = batch * sum(layer.flops for layer in architecture.layers) / (tflops * 1e12)
    return spread(architecture, forward_s, 2 * forward_s, first_backward=True)


def _host_rates() -> tuple[float, float]:
    """GB/s at which the host takes and adds AlexNet's gradients, and at which it sends them back, over all layers."""
    host = published_times.CGDP_3_MS
    size = _alexnet().bytes / 1e6
    return size / (host["copies"] + host["accumulation"]), size / host["back"]


@cache
def _iteration(model: str, trace: Trace, batch: int, sync_us: float, chunk: int) -> Outcome:
    to_host, back = _host_rates()
    choice = choose(f"cgdp:chunk={chunk}:sync={sync_us:g}:accumulation={to_host}:broadcast={back}")
    plan = choice.plan(trace, layers_of(build(model)), GPUS, batch)
    return play(papers_network(1e9), [Job(papers_workload(plan), choice.mechanism, GPUS)]).outcomes[0]


def _compute_s(trace: Trace) -> float:
    return sum(layer.forward_ns + layer.backward_ns for layer in trace.layers) / 1e9


def _one_after_the_other_s(model: str, trace: Trace) -> float:
    """An iteration of the original training: everything is added after the backward pass, and sent before the next."""
    caffe = published_numbers.CGDP_2_CAFFE_MS
    per_byte_s = (caffe["broadcast"] + caffe["accumulate"]) / 1e3 / _alexnet().bytes
    return _compute_s(trace) + per_byte_s * trace.bytes


def table_1() -> Iterator[Cell]:
    """Layers and parameters of the networks, counted."""
    for model, (layers, millions, _) in published_numbers.CGDP_1.items():
        trained = [layer for layer in layers_of(build(model)) if layer.params]
        yield Cell("cgdp1", model, "Layers", layers, _depth(model), COUNTED)
        elements = sum(layer.params for layer in trained)
        yield Cell("cgdp1", model, "Parameters (million)", millions, elements / 1e6, COUNTED)


def _depth(model: str) -> int:
    """Layers with weights on the longest way through the network."""
    layers = [layer for layer in layers_of(build(model)) if layer.params]
    if model == "googlenet":  # two on the longest branch of a module
        modules = {layer.name.split("/")[0] for layer in layers if "/" in layer.name}
        return len([layer for layer in layers if "/" not in layer.name]) + 2 * len(modules)
    return len([layer for layer in layers if layer.kind in ("conv", "fc") and "shortcut" not in layer.name])


def table_2() -> Iterator[Cell]:
    """AlexNet under CGDP: how much of the host's work at the end is exposed, if handing over takes no time."""
    outcome = _iteration("alexnet", _alexnet(), published_times.CGDP_BATCH, 0, 1)
    left_us = (outcome.iteration_end_ns[1] - max(outcome.backward_end_ns[1])) / 1e3
    number = published_times.CGDP_2_LEFT_US
    yield Cell("cgdp2", "alexnet, four GPUs", "not hidden (us)", number, left_us, ASSUMED, HANDING_OVER)


def table_3() -> Iterator[Cell]:
    """AlexNet's layers: parameters, counted, and the host's times if every byte takes as long as on average."""
    layers = {layer.name: layer.params for layer in layers_of(build("alexnet")) if layer.params}
    rows = published_numbers.CGDP_3
    columns = ("GPU-to-CPU copy (ms)", "accumulation on CPUs (ms)", "CPU-to-GPU copy (ms)")
    totals = [sum(row[1 + index] for row in rows.values()) for index in range(3)]
    for name, row in rows.items():
        yield Cell("cgdp3", name, "parameters (million)", row[0], layers[name] / 1e6, COUNTED)
        for column, number, total in zip(columns, row[1:], totals, strict=True):
            share = layers[name] / sum(layers.values())
            yield Cell("cgdp3", name, column, number, total * share, FITTED, "this row's sum")


# ---- figures -------------------------------------------------------------------------------------------------------


def figure_3() -> Iterator[Cell]:
    """Seconds of ten iterations of ResNet-152 with batches of 16, against the chunk size."""
    trace = _trace("resnet152", 16, ASSUMED_TFLOPS)
    rests_on = f"compute rate, {HANDING_OVER}, {RATES}"
    for chunk in CHUNKS:
        seconds = 10 * _iteration("resnet152", trace, 16, ASSUMED_SYNC_US, chunk).iteration_s
        for row, value in (
            ("CGDP", seconds),
            ("original", 10 * _one_after_the_other_s("resnet152", trace)),
            ("one GPU", 10 * _compute_s(trace)),
        ):
            yield Cell("cgdp-figure3", row, f"{chunk} layers (s)", None, value, ASSUMED, rests_on)


def figure_6() -> Iterator[Cell]:
    """An iteration of Caffe's over one of CGDP's with four GPUs."""
    caffe = published_numbers.CGDP_2_CAFFE_MS
    for model, number in published_numbers.CGDP_6_GAIN.items():
        batch = published_numbers.CGDP_1[model][2]
        if model == "alexnet":
            original_s = (sum(caffe.values()) - caffe["update"]) / 1e3
            trace, sync_us, rests_on = _alexnet(), 0.0, HANDING_OVER
        else:
            trace, sync_us = _trace(model, batch, ASSUMED_TFLOPS), ASSUMED_SYNC_US
            original_s, rests_on = _one_after_the_other_s(model, trace), f"compute rate, {HANDING_OVER}, {RATES}"
        seconds = _iteration(model, trace, batch, sync_us, 1).iteration_s + caffe["update"] / 1e3
        gain = (original_s + caffe["update"] / 1e3) / seconds
        yield Cell("cgdp-figure6", model, "4 GPUs (x)", number, gain, ASSUMED, rests_on)


def figure_7() -> Iterator[Cell]:
    """Minutes of 21,000 iterations of AlexNet and their tests, from one iteration of each."""
    update_s = published_numbers.CGDP_2_CAFFE_MS["update"] / 1e3
    simulated_s = _iteration("alexnet", _alexnet(), published_times.CGDP_BATCH, 0, 1).iteration_s + update_s
    iteration_s = {"Caffe": published_numbers.CGDP_2_TOTAL_MS["Caffe"] / 1e3, "CGDP": simulated_s}
    for system, number in published_numbers.CGDP_7_MINUTES.items():
        training_s = published_numbers.CGDP_7_ITERATIONS * iteration_s[system]
        tests_s = published_numbers.CGDP_7_TESTS * published_numbers.CGDP_7_TEST_S
        kind, rests_on = (COUNTED, "Table 2's total") if system == "Caffe" else (ASSUMED, HANDING_OVER)
        minutes = (training_s + tests_s) / 60
        yield Cell("cgdp-figure7", system, "21,000 iterations (min)", number, minutes, kind, rests_on)


def figure_8() -> Iterator[Cell]:
    """The search on ResNet-152 with batches of 12: the size it ends with, after how many sizes, and what that gains."""
    trace = _trace("resnet152", 12, ASSUMED_TFLOPS)
    rests_on = f"compute rate, {HANDING_OVER}, {RATES}"
    for step, reach in ((5, 5), (10, 5), (20, 5), (10, 10)):
        found = _search(trace, step, reach)
        row = f"step {step}, range {reach}"
        best = published_numbers.CGDP_8_BEST_CHUNK.get((step, reach))
        yield Cell("cgdp-figure8", row, "best size", best, found.best, ASSUMED, rests_on)
        yield Cell("cgdp-figure8", row, "sizes tried", None, len(found.trials), ASSUMED, rests_on)
        seconds = _iteration("resnet152", trace, 12, ASSUMED_SYNC_US, found.best).iteration_s
        gain, number = _one_after_the_other_s("resnet152", trace) / seconds, published_numbers.CGDP_8_GAIN
        yield Cell("cgdp-figure8", row, "over the original (x)", number, gain, ASSUMED, rests_on)


def _search(trace: Trace, step: int, reach: int) -> Search:
    layers = tuple(layer.members for layer in layers_of(build("resnet152")) if layer.params)
    to_host, back = _host_rates()
    costs = costs_of(trace, ASSUMED_SYNC_US / 1e6, to_host * 1e9, back * 1e9, layers)
    sizes = range(1, len(costs) + 1)
    lapses_s = {size: predict(costs, partition(len(costs), size), in_turn=True).total for size in sizes}
    return search(lapses_s, step, reach, 10, len(costs))


TABLES: dict[str, Table] = {
    "cgdp1": without_links(table_1),
    "cgdp2": without_links(table_2),
    "cgdp3": without_links(table_3),
    "cgdp-figure3": without_links(figure_3),
    "cgdp-figure6": without_links(figure_6),
    "cgdp-figure7": without_links(figure_7),
    "cgdp-figure8": without_links(figure_8),
}

NOTES = {
    "cgdp2": "Table 2's passes, Table 3's rates, and handing over in no time.",
    "cgdp-figure8": "The sizes from 5 to 20 differ by less than 1 %: which one is best is chance.",
}
