"""Tables and figures of "How to Train your DNN: The Network Operator Edition".

Every cell says what it rests on (simulation/papers/cell.py):

- `backward time`: fitted per model (FITTED_BACKWARD_S), as that of the paper's Table 3 is too short for its own
  compute-bound cells;
- `bandwidth`: Table 1's, which the paper does not print;
- `whole sums`: a switch has a parameter's whole sum before it sends any of it. That fits the tables; figure 2 streams.

docs/paper.md lists what is not reproduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal
from functools import cache, partial
from typing import Any

from hostlib.mechanisms.mechanism import find
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.models import published_times
from simulation.models.architectures import Architecture, build
from simulation.models.published_times import MODELS
from simulation.models.synthetic_trace import spread
from simulation.papers import published_numbers
from simulation.papers.cell import CHOSEN, COUNTED, FITTED, PREDICTED, Cell, Table, without_links
from simulation.papers.semantics import papers_network, papers_workload
from simulation.simulator.play import Job, Order, Outcome, only
from simulation.simulator.workload import Workload

# Seconds of the backward pass, one number per model. Inception-v3: the largest that keeps the no-barrier cell within 12
# %. Others: the middle of what fits the cells of Tables 4, 6, 8, 9 and 10. VGG-16 needs none.
FITTED_BACKWARD_S = {"inception3": 0.377, "resnet101": 0.380, "resnet200": 0.450}

BASELINE, AGGREGATION, MULTICAST = "ps", "inagg", "mcast"
BOTH, DIRECT = "inagg+mcast:via_server", "inagg+mcast"
RING, RING_MULTICAST, BUTTERFLY = "ring", "ring+mcast", "butterfly"
WORKERS, GBITS = 32, 25.0
TABLE_1_WORKERS, TABLE_1_GBITS = 8, 5.0  # the paper does not print the bandwidth; 5 Gbit/s fits
FIGURE_MECHANISMS = {
    "baseline": BASELINE,
    "aggregation": AGGREGATION,
    "multicast": MULTICAST,
    "multicast + aggregation": BOTH,
    "ring": RING,
    "butterfly": BUTTERFLY,
}
BANDWIDTHS, WORKER_COUNTS = (10, 25, 40, 100), (4, 8, 16, 32)
ADDED_MODULES, SPEEDS = (0, 1, 25, 50, 75, 100, 125), (1.0, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the paper with its computing times, on links as the paper has them.

    Attributes:
        fitted: with the fitted backward time, if it has one.
        bandwidth: multiplies that of every link.
        whole_sums: switches have a parameter's whole sum before they send it on.
        backward_s: of the backward pass, instead of the fitted or the published time.
    """

    name: str
    fitted: bool
    bandwidth: float = 1.0
    whole_sums: bool = True
    backward_s: float | None = None

    @property
    def trace(self) -> Trace:
        published_s = published_times.COMPUTE_S[self.name][1]
        fitted_s = FITTED_BACKWARD_S.get(self.name, published_s) if self.fitted else published_s
        return _trace(self.name, fitted_s if self.backward_s is None else self.backward_s)

    def time_s(
        self, mechanism: str, workers: int = WORKERS, gbits: float = GBITS, order: Order = Order.ROUND_ROBIN
    ) -> float:
        return _time_s(self.trace, mechanism, workers, gbits * self.bandwidth, order, self.whole_sums)

    def rests_on(self, mechanism: str) -> tuple[str, str]:
        """What kind of number a mechanism's time is, and what was fitted or chosen for it."""
        fits = ["backward time"] if self.fitted and self.name in FITTED_BACKWARD_S else []
        chosen = ["whole sums"] if mechanism.startswith(AGGREGATION) and self.whole_sums else []
        return FITTED if fits else CHOSEN if chosen else PREDICTED, ", ".join(fits + chosen)

    def cell(
        self,
        table: str,
        row: str,
        column: str,
        published: float | None,
        mechanism: str,
        **played: Any,
    ) -> Cell:
        """A cell that has this mechanism's seconds."""
        return self.timed(table, row, column, published, mechanism, self.time_s(mechanism, **played))

    def timed(
        self,
        table: str,
        row: str,
        column: str,
        published: float | None,
        mechanism: str,
        time_s: float,
        simulated: float | None = None,
    ) -> Cell:
        """A cell with a number that this mechanism's time decides; the time itself unless `simulated` is given."""
        kind, rests_on = self.rests_on(mechanism)
        number = time_s if simulated is None else simulated
        return Cell(table, row, column, published, number, kind, rests_on, time_s)


@cache
def _trace(name: str, backward_s: float) -> Trace:
    forward_s, _ = published_times.COMPUTE_S[name]
    return spread(build(name, published_times.PIXELS), forward_s, backward_s)


@cache
def _workload(trace: Trace) -> Workload:
    return papers_workload(trace)


@cache
def _time_s(trace: Trace, mechanism: str, workers: int, gbits: float, order: Order, whole_sums: bool) -> float:
    network = papers_network(gbits * 1e9, whole_sums)
    return only(network, Job(_workload(trace), find(mechanism), workers, order=order))[0].iteration_s


# ---- tables --------------------------------------------------------------------------------------------------------


def table_1(bandwidth: float) -> Iterator[Cell]:
    """Iteration time by number of servers, 8 workers: as the paper simulated it and as it measured it."""
    for published, what in ((published_times.TABLE_1, "Sim"), (published_numbers.TABLE_1_REAL, "Real")):
        for name, numbers in published.items():
            model = Model(name, fitted=False, bandwidth=bandwidth)
            for servers, number in zip((1, 2, 4, 8), numbers, strict=True):
                seconds = model.time_s(f"ps:servers={servers}", TABLE_1_WORKERS, TABLE_1_GBITS)
                row = f"{MODELS[name]} {what}"
                yield Cell("1", row, f"{servers} PS", number, seconds, FITTED, "bandwidth", seconds)


def table_2() -> Iterator[Cell]:
    """Sizes and operations of the models, counted. The paper's column of weights contradicts its sizes."""
    for name, (weights, gbits, flops) in published_numbers.TABLE_2.items():
        architecture = build(name, published_times.PIXELS)
        own = [layer for layer in architecture.layers if not layer.auxiliary]
        elements = sum(v.elements for layer in own for v in layer.trained)
        row = MODELS[name]
        yield Cell("2", row, "Weights", weights, elements, COUNTED)
        yield Cell("2", row, "Model size (Gb)", gbits, 32e-9 * elements, COUNTED)
        yield Cell("2", row, "FLOPs", flops, sum(layer.flops for layer in own), COUNTED)


def table_3() -> Iterator[Cell]:
    """Time on a link at 25 Gbit/s, and the backward pass's time over it; its two compute times are inputs."""
    for name, (network_s, ratio) in published_numbers.TABLE_3.items():
        seconds = 8 * _trace(name, published_times.COMPUTE_S[name][1]).bytes / (GBITS * 1e9)
        backward_s = published_times.COMPUTE_S[name][1]
        yield Cell("3", MODELS[name], "Bkprop Net, 25 Gbps (s)", network_s, seconds, COUNTED)
        yield Cell("3", MODELS[name], "Comp:Net Ratio", ratio, backward_s / seconds, COUNTED)


def _speedup(table: str, name: str, column: str, mechanism: str, number: float, bandwidth: float, fitted: bool) -> Cell:
    """A mechanism's speed-up over one server with the same compute times."""
    model = Model(name, fitted, bandwidth)
    seconds = model.time_s(mechanism)
    return model.timed(table, MODELS[name], column, number, mechanism, seconds, model.time_s(BASELINE) / seconds)


def table_4(bandwidth: float) -> Iterator[Cell]:
    """Speed-ups by the fabric. The baseline in seconds is Table 8's multiplied by Table 4's last column."""
    for name, numbers in published_times.TABLE_4.items():
        baseline_s = round(published_times.TABLE_8[name][0] * numbers[2], 3)
        model = Model(name, fitted=False, bandwidth=bandwidth)
        yield model.cell("4", MODELS[name], "Baseline (s)", baseline_s, BASELINE)
        columns = (("Aggregation Only", AGGREGATION), ("Multicast Only", MULTICAST), ("Multicast + Aggregation", BOTH))
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            yield _speedup("4", name, column, mechanism, number, bandwidth, fitted=mechanism != MULTICAST)


def table_6(bandwidth: float) -> Iterator[Cell]:
    """Speed-ups by the hosts."""
    for name, numbers in published_times.TABLE_6.items():
        columns = (("Ring-Reduce", RING), ("Ring-Reduce + Multicast", RING_MULTICAST), ("Butterfly Mixing", BUTTERFLY))
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            yield _speedup("6", name, column, mechanism, number, bandwidth, fitted=True)


def table_7() -> Iterator[Cell]:
    """Shares of the servers, truncated to as many digits as the paper prints."""
    for (servers, name), numbers in published_times.TABLE_7.items():
        shares = server_shares(build(name, published_times.PIXELS), servers)
        for column, number, share in zip(("Min %", "Max %"), numbers, (min(shares), max(shares)), strict=True):
            cut = Decimal(share).quantize(Decimal(number), rounding=ROUND_DOWN)
            yield Cell("7", f"{servers} {MODELS[name]}", column, float(number), float(cut), COUNTED)


def server_shares(architecture: Architecture, servers: int) -> list[float]:
    """Shares of a model's bytes if its variables are assigned to servers in turn."""
    held: Counter[int] = Counter({number: 0 for number in range(servers)})
    for turn, variable in enumerate(architecture.variables):
        held[turn % servers] += variable.elements
    return [elements / held.total() for elements in held.values()]


def table_8(bandwidth: float) -> Iterator[Cell]:
    """Seconds, also with the parameters spread evenly over 8 servers."""
    for name, numbers in published_times.TABLE_8.items():
        model = Model(name, fitted=True, bandwidth=bandwidth)
        columns = (
            ("Multiagg (s)", BOTH),
            ("8 PS Multiagg (s)", f"{BOTH}:servers=8:assign=even"),
            ("Ring-Reduce (s)", RING),
        )
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            yield model.cell("8", MODELS[name], column, number, mechanism)


def table_9(bandwidth: float) -> Iterator[Cell]:
    """Seconds of two iterations. Without a barrier: from the first gradient's sum in the first one to that in the
    third.
    """
    for name, numbers in published_times.TABLE_9.items():
        model = Model(name, fitted=True, bandwidth=bandwidth)
        for column, mechanism, number in (("Multiagg (s)", BOTH, numbers[0]), ("Ring-reduce (s)", RING, numbers[1])):
            yield model.timed("9", MODELS[name], column, number, mechanism, 2 * model.time_s(mechanism))
        seconds = without_barrier_s(model)
        yield model.timed("9", MODELS[name], "Multiagg no barrier (s)", numbers[2], BOTH, seconds)


def without_barrier_s(model: Model) -> float:
    """Two iterations of multicast with aggregation, each parameter distributed as soon as it is summed."""
    workload, network = _workload(model.trace), papers_network(GBITS * 1e9 * model.bandwidth, model.whole_sums)
    free: Outcome = only(network, Job(workload, find(BOTH), WORKERS, iterations=3, barrier=False))[0]
    first = workload.released[0][0]
    return (free.reduced_ns[3][first] - free.reduced_ns[1][first]) / 1e9


def table_10(bandwidth: float) -> Iterator[Cell]:
    """Seconds with aggregation in the fabric, and with block distribution instead."""
    for (name, gbits), numbers in published_times.TABLE_10.items():
        model, row = Model(name, fitted=True, bandwidth=bandwidth), f"{MODELS[name]} {gbits} Gbps"
        yield model.cell("10", row, "Agg (s)", numbers[0], AGGREGATION, gbits=gbits)
        yield model.cell("10", row, "Block Distr. (s)", numbers[1], BASELINE, gbits=gbits, order=Order.BLOCK)


def streaming(bandwidth: float) -> Iterator[Cell]:
    """What `whole sums` decides: cells with sums in the fabric, if the switch sends each sum on as it comes."""
    for name in published_times.TABLE_4:
        model = Model(name, fitted=True, bandwidth=bandwidth, whole_sums=False)
        for column, mechanism, number in (
            ("Table 4, Aggregation Only", AGGREGATION, published_times.TABLE_4[name][0]),
            ("Table 4, Multicast + Aggregation", BOTH, published_times.TABLE_4[name][2]),
        ):
            seconds = model.time_s(mechanism)
            speedup = model.time_s(BASELINE) / seconds
            yield model.timed("streaming", MODELS[name], column, number, mechanism, seconds, speedup)
        even, eight = f"{BOTH}:servers=8:assign=even", published_times.TABLE_8[name]
        yield model.cell("streaming", MODELS[name], "Table 8, Multiagg (s)", eight[0], BOTH)
        yield model.cell("streaming", MODELS[name], "Table 8, 8 PS Multiagg (s)", eight[1], even)
        yield model.cell("streaming", MODELS[name], "Table 8, Ring-Reduce (s)", eight[2], RING)
        yield model.cell("streaming", MODELS[name], "sums multicast by the switch, no server (s)", None, DIRECT)
        nine = published_times.TABLE_9[name][2]
        free_s = without_barrier_s(model)
        yield model.timed("streaming", MODELS[name], "Table 9, Multiagg no barrier (s)", nine, BOTH, free_s)
        for gbits in (10, 100):
            ten = published_times.TABLE_10[name, gbits][0]
            column = f"Table 10, Agg at {gbits} Gbps (s)"
            yield model.cell("streaming", MODELS[name], column, ten, AGGREGATION, gbits=gbits)


# ---- figures -------------------------------------------------------------------------------------------------------


def figure_2(bandwidth: float) -> Iterator[Cell]:
    """The toy example: 2 workers, 3 operations with 3 s of computing and 3 s of sending; together, and 3 s apart."""
    toy = papers_workload(
        synthesise(
            [Layer(f"op{i}", 0, 3 * 10**9) for i in range(3)],
            [Parameter(f"op{i}/w", 3 * 10**6, f"op{i}") for i in range(3)],
        )
    )
    gap = replace(toy, backward_ns=toy.backward_ns.repeat(2, axis=0))
    gap.backward_ns[1, 0] += 3 * 10**9
    for label, mechanism in (("without", BASELINE), ("with", AGGREGATION)):
        for column, workload, number in zip(
            ("together", "staggered"), (toy, gap), published_times.FIGURE_2[label], strict=True
        ):
            seconds = _until_summed_s(workload, mechanism, bandwidth)
            row = f"{label} aggregation"
            yield Cell("figure2", row, f"{column} (s)", number, seconds, PREDICTED, "", seconds)


def _until_summed_s(workload: Workload, mechanism: str, bandwidth: float) -> float:
    """Time of an aggregation phase alone: until the server has the last sum."""
    network = papers_network(8e6 * bandwidth)  # a megabyte per second
    outcome = only(network, Job(workload, find(mechanism), 2, bare=True))[0]
    return max(outcome.reduced_ns[1]) / 1e9


def _by_bandwidth(table: str, name: str, bandwidth: float) -> Iterator[Cell]:
    for label, mechanism in FIGURE_MECHANISMS.items():
        for gbits in BANDWIDTHS:
            model = Model(name, fitted=True, bandwidth=bandwidth)
            number = _printed_s(name, label, gbits, WORKERS)
            yield model.cell(table, label, f"{gbits} Gbps (s)", number, mechanism, gbits=gbits)
    if name == "vgg16":
        model, whole = Model(name, fitted=False, bandwidth=bandwidth), published_times.RING_WHOLE_S
        yield model.cell(table, "ring without messages", "10 Gbps (s)", whole, "ring:split=no", gbits=10)


def _by_workers(table: str, name: str, bandwidth: float) -> Iterator[Cell]:
    model = Model(name, fitted=True, bandwidth=bandwidth)
    for label, mechanism in FIGURE_MECHANISMS.items():
        for workers in WORKER_COUNTS:
            number = _printed_s(name, label, GBITS, workers)
            yield model.cell(table, label, f"{workers} workers (s)", number, mechanism, workers=workers)
    if name == "vgg16":
        for workers, times in published_numbers.FIGURE_8_RING_GAIN.items():
            both_s, ring_s = model.time_s(BOTH, workers), model.time_s(RING, workers)
            row = "ring's gain over multicast + aggregation, as the text has it"
            yield model.timed(table, row, f"{workers} workers (x)", times, BOTH, both_s, both_s / ring_s)


def _printed_s(name: str, label: str, gbits: float, workers: int) -> float | None:
    """The value that a table prints for a point of a figure."""
    if workers != WORKERS:
        return None
    if gbits == GBITS:
        return {
            "baseline": round(published_times.TABLE_8[name][0] * published_times.TABLE_4[name][2], 3),
            "multicast + aggregation": published_times.TABLE_8[name][0],
            "ring": published_times.TABLE_8[name][2],
        }.get(label)
    return (
        published_times.TABLE_10[name, int(gbits)][0]
        if label == "aggregation" and (name, gbits) in published_times.TABLE_10
        else None
    )


def _gains(model: Model, trace: Trace, table: str, column: str, printed: dict[str, float]) -> Iterator[Cell]:
    """Every mechanism's speed-up over one server, for a trace made of the model's."""
    at = partial(_time_s, trace, workers=WORKERS, gbits=GBITS * model.bandwidth, order=Order.ROUND_ROBIN)
    baseline_s = at(mechanism=BASELINE, whole_sums=True)
    for label, mechanism in FIGURE_MECHANISMS.items():
        seconds = at(mechanism=mechanism, whole_sums=True)
        yield model.timed(table, label, column, printed.get(label), mechanism, seconds, baseline_s / seconds)


def _by_modules(table: str, module: str, bandwidth: float) -> Iterator[Cell]:
    """Inception-v3 with more modules of one kind."""
    model = Model("inception3", fitted=True, bandwidth=bandwidth)
    for count in ADDED_MODULES:
        trace = model.trace.add_layers(rf"{module}/", count) if count else model.trace
        yield from _gains(model, trace, table, f"{count} more (x)", {})


def _by_speed(table: str, name: str, bandwidth: float) -> Iterator[Cell]:
    """Faster convolutions."""
    model = Model(name, fitted=True, bandwidth=bandwidth)
    layers = [layer.name for layer in build(name, published_times.PIXELS).layers if layer.kind == "conv"]
    for speed in SPEEDS:
        trace = model.trace.scale_compute(1 / speed, "(" + "|".join(layers) + ")$")
        printed = published_times.FASTER_RESNET_200 if (name, speed) == ("resnet200", 3.0) else {}
        yield from _gains(model, trace, table, f"{speed:g} times as fast (x)", printed)


TABLES: dict[str, Table] = {
    "1": table_1,
    "2": without_links(table_2),
    "3": without_links(table_3),
    "4": table_4,
    "6": table_6,
    "7": without_links(table_7),
    "8": table_8,
    "9": table_9,
    "10": table_10,
    "streaming": streaming,
    "figure2": figure_2,
    "figure3": partial(_by_bandwidth, "figure3", "inception3"),
    "figure4": partial(_by_bandwidth, "figure4", "resnet200"),
    "figure5": partial(_by_bandwidth, "figure5", "vgg16"),
    "figure6": partial(_by_workers, "figure6", "inception3"),
    "figure7": partial(_by_workers, "figure7", "resnet200"),
    "figure8": partial(_by_workers, "figure8", "vgg16"),
    "figure9": partial(_by_modules, "figure9", "Mixed_6e"),
    "figure10": partial(_by_modules, "figure10", "Mixed_5d"),
    "figure11": partial(_by_speed, "figure11", "inception3"),
    "figure12": partial(_by_speed, "figure12", "resnet200"),
}

# Explanations of the cells that differ from the published ones.
NOTES = {
    "1": "The bandwidth, 5 Gbit/s, is fitted. VGG-16 with 2 and 8 servers: the first workers' gradients travel while the "
    "last parameters are distributed, which the published numbers do not show. Inception-v3 with 8: compute-bound, but "
    "not fitted.",
    "2": "The column of weights contradicts the sizes, which are 32 bits per weight.",
    "4": "Whole sums are chosen because they fit; `streaming` has the same cells without them.",
    "7": "Inception-v3 on 4 servers (0.451) and Resnet-200 on 8 (0.22) contradict Table 1, where the iteration with 8 "
    "servers takes Resnet-200 as long as with 4, and Inception-v3 with 4 servers 60 % of that with one.",
    "8": "Whole sums are chosen because they fit: if sums stream, VGG-16's Multiagg is faster than its ring (`streaming`).",
    "10": "Inception-v3 with aggregation at 100 Gbps: the span that fits it (0.396 s) would put Table 9 beyond 12 %.",
}
