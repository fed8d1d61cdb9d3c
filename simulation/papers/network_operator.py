"""Simulations of published tables and figures.

Every number is marked. `predicted` uses only the published computing times and the network. `fitted` uses a backward
time that was fitted per model (FITTED_BACKWARD_S), because that of the paper's Table 3 is too short for its own
compute-bound cells. docs/measurements/published-tables.md lists what is not reproduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal
from functools import cache

from hostlib.mechanisms.mechanism import find
from hostlib.schedules.schedule import Operation, Receive, Schedule, Send, link_elements, server, worker
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import SimulationError
from simulation.models import published_times
from simulation.models.architectures import Architecture, build
from simulation.models.published_times import MODELS, PublishedCell
from simulation.models.synthetic_trace import spread
from simulation.papers.speedups import cgdp_2, poseidon_8, ralp_3
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Order, Outcome, only
from simulation.simulator.workload import Workload, of_trace

# Seconds of the backward pass, one number per model. Inception-v3: the largest that keeps the no-barrier cell within 12
# %. Others: the middle of what fits the cells of Tables 4, 6, 8, 9 and 10. VGG-16 needs none.
FITTED_BACKWARD_S = {"inception3": 0.377, "resnet101": 0.380, "resnet200": 0.450}

BASELINE, AGGREGATION, MULTICAST = "ps", "inagg", "mcast"
BOTH = "inagg+mcast:via_server"
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
    """A model of the paper with its computing times."""

    name: str
    fitted: bool

    @property
    def kind(self) -> str:
        return "fitted" if self.fitted and self.name in FITTED_BACKWARD_S else "predicted"

    @property
    def trace(self) -> Trace:
        return _trace(self.name, self.kind == "fitted")

    def time_s(
        self, mechanism: str, workers: int = WORKERS, gbits: float = GBITS, order: Order = Order.ROUND_ROBIN
    ) -> float:
        return _time_s(self.trace, mechanism, workers, gbits, order)


@cache
def _trace(name: str, fitted: bool) -> Trace:
    forward, backward = published_times.COMPUTE_S[name]
    return spread(build(name, published_times.PIXELS), forward, FITTED_BACKWARD_S[name] if fitted else backward)


@cache
def _workload(trace: Trace) -> Workload:
    return of_trace(trace)


def _network(gbits: float) -> Network:
    return Network(gbits * 1e9, store_and_aggregate=True)


@cache
def _time_s(trace: Trace, mechanism: str, workers: int, gbits: float, order: Order) -> float:
    return only(_network(gbits), Job(_workload(trace), find(mechanism), workers, order=order))[0].iteration_s


# ---- tables --------------------------------------------------------------------------------------------------------


def table_1() -> Iterator[PublishedCell]:
    """Iteration time by number of servers, 8 workers."""
    for name, numbers in published_times.TABLE_1.items():
        model = Model(name, fitted=False)
        for servers, number in zip((1, 2, 4, 8), numbers, strict=True):
            seconds = model.time_s(f"ps:servers={servers}", TABLE_1_WORKERS, TABLE_1_GBITS)
            yield PublishedCell("1", f"{MODELS[name]} Sim", f"{servers} PS", number, seconds)


def _speedup(name: str, mechanism: str, fitted: bool) -> tuple[float, str]:
    model = Model(name, fitted)
    return model.time_s(BASELINE) / model.time_s(mechanism), model.kind


def table_4() -> Iterator[PublishedCell]:
    """Speed-ups by the fabric. The baseline in seconds is Table 8's multiplied by Table 4's last column."""
    for name, numbers in published_times.TABLE_4.items():
        baseline_s = round(published_times.TABLE_8[name][0] * numbers[2], 3)
        yield PublishedCell("4", MODELS[name], "Baseline (s)", baseline_s, Model(name, fitted=False).time_s(BASELINE))
        columns = (("Aggregation Only", AGGREGATION), ("Multicast Only", MULTICAST), ("Multicast + Aggregation", BOTH))
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            speedup, kind = _speedup(name, mechanism, fitted=mechanism != MULTICAST)
            yield PublishedCell("4", MODELS[name], column, number, speedup, kind)


def table_6() -> Iterator[PublishedCell]:
    """Speed-ups by the hosts."""
    for name, numbers in published_times.TABLE_6.items():
        columns = (("Ring-Reduce", RING), ("Ring-Reduce + Multicast", RING_MULTICAST), ("Butterfly Mixing", BUTTERFLY))
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            speedup, kind = _speedup(name, mechanism, fitted=True)
            yield PublishedCell("6", MODELS[name], column, number, speedup, kind)


def table_7() -> Iterator[PublishedCell]:
    """Shares of the servers, truncated to as many digits as the paper prints."""
    for (servers, name), numbers in published_times.TABLE_7.items():
        shares = server_shares(build(name, published_times.PIXELS), servers)
        for column, number, share in zip(("Min %", "Max %"), numbers, (min(shares), max(shares)), strict=True):
            cut = Decimal(share).quantize(Decimal(number), rounding=ROUND_DOWN)
            yield PublishedCell("7", f"{servers} {MODELS[name]}", column, float(number), float(cut))


def server_shares(architecture: Architecture, servers: int) -> list[float]:
    """Shares of a model's bytes if its variables are assigned to servers in turn."""
    held: Counter[int] = Counter({number: 0 for number in range(servers)})
    for turn, variable in enumerate(architecture.variables):
        held[turn % servers] += variable.elements
    return [elements / held.total() for elements in held.values()]


def table_8() -> Iterator[PublishedCell]:
    """Seconds, also with the parameters spread evenly over 8 servers."""
    for name, numbers in published_times.TABLE_8.items():
        model = Model(name, fitted=True)
        columns = (
            ("Multiagg (s)", BOTH),
            ("8 PS Multiagg (s)", f"{BOTH}:servers=8:assign=even"),
            ("Ring-Reduce (s)", RING),
        )
        for (column, mechanism), number in zip(columns, numbers, strict=True):
            yield PublishedCell("8", MODELS[name], column, number, model.time_s(mechanism), model.kind)


def table_9() -> Iterator[PublishedCell]:
    """Seconds of two iterations. Without a barrier: from the first gradient's sum in the first one to that in the
    third.
    """
    for name, numbers in published_times.TABLE_9.items():
        model = Model(name, fitted=True)
        for column, mechanism, number in (("Multiagg (s)", BOTH, numbers[0]), ("Ring-reduce (s)", RING, numbers[1])):
            yield PublishedCell("9", MODELS[name], column, number, 2 * model.time_s(mechanism), model.kind)
        workload = _workload(model.trace)
        free: Outcome = only(_network(GBITS), Job(workload, find(BOTH), WORKERS, iterations=3, barrier=False))[0]
        first = workload.released[0][0]
        seconds = (free.reduced_ns[3][first] - free.reduced_ns[1][first]) / 1e9
        yield PublishedCell("9", MODELS[name], "Multiagg no barrier (s)", numbers[2], seconds, model.kind)


def table_10() -> Iterator[PublishedCell]:
    """Seconds with aggregation in the fabric, and with block distribution instead."""
    for (name, gbits), numbers in published_times.TABLE_10.items():
        model, row = Model(name, fitted=True), f"{MODELS[name]} {gbits} Gbps"
        yield PublishedCell("10", row, "Agg (s)", numbers[0], model.time_s(AGGREGATION, gbits=gbits), model.kind)
        block = model.time_s(BASELINE, gbits=gbits, order=Order.BLOCK)
        yield PublishedCell("10", row, "Block Distr. (s)", numbers[1], block, model.kind)


# ---- figures -------------------------------------------------------------------------------------------------------


def figure_2() -> Iterator[PublishedCell]:
    """The toy example: 2 workers, 3 operations with 3 s of computing and 3 s of sending; together, and 3 s apart."""
    toy = of_trace(
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
            yield PublishedCell(
                "figure2", f"{label} aggregation", f"{column} (s)", number, _until_summed_s(workload, mechanism)
            )


def _until_summed_s(workload: Workload, mechanism: str) -> float:
    """Time of an aggregation phase alone: until the server has the last sum."""
    network = Network(8e6)  # a megabyte per second
    outcome = only(network, Job(workload, find(mechanism), 2, bare=True))[0]
    return max(outcome.reduced_ns[1]) / 1e9


def _by_bandwidth(table: str, name: str) -> Callable[[], Iterator[PublishedCell]]:
    def cells() -> Iterator[PublishedCell]:
        for label, mechanism in FIGURE_MECHANISMS.items():
            for gbits in BANDWIDTHS:
                model = Model(name, fitted=True)
                number = _printed_s(name, label, gbits, WORKERS)
                yield PublishedCell(
                    table, label, f"{gbits} Gbps (s)", number, model.time_s(mechanism, gbits=gbits), model.kind
                )
        if name == "vgg16":
            seconds = Model(name, fitted=False).time_s("ring:split=no", gbits=10)
            yield PublishedCell(table, "ring without messages", "10 Gbps (s)", published_times.RING_WHOLE_S, seconds)

    return cells


def _by_workers(table: str, name: str) -> Callable[[], Iterator[PublishedCell]]:
    def cells() -> Iterator[PublishedCell]:
        for label, mechanism in FIGURE_MECHANISMS.items():
            for workers in WORKER_COUNTS:
                model = Model(name, fitted=True)
                number = _printed_s(name, label, GBITS, workers)
                yield PublishedCell(
                    table, label, f"{workers} workers (s)", number, model.time_s(mechanism, workers), model.kind
                )

    return cells


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


def _by_modules(table: str, module: str) -> Callable[[], Iterator[PublishedCell]]:
    """Inception-v3 with more modules of one kind: speed-ups over one server."""

    def cells() -> Iterator[PublishedCell]:
        model = Model("inception3", fitted=True)
        for count in ADDED_MODULES:
            trace = model.trace.add_layers(rf"{module}/", count) if count else model.trace
            baseline = _time_s(trace, BASELINE, WORKERS, GBITS, Order.ROUND_ROBIN)
            for label, mechanism in FIGURE_MECHANISMS.items():
                seconds = _time_s(trace, mechanism, WORKERS, GBITS, Order.ROUND_ROBIN)
                yield PublishedCell(table, label, f"{count} more (x)", None, baseline / seconds, model.kind)

    return cells


def _by_speed(table: str, name: str) -> Callable[[], Iterator[PublishedCell]]:
    """Faster convolutions: speed-ups over one server."""

    def cells() -> Iterator[PublishedCell]:
        model = Model(name, fitted=True)
        layers = [layer.name for layer in build(name, published_times.PIXELS).layers if layer.kind == "conv"]
        for speed in SPEEDS:
            trace = model.trace.scale_compute(1 / speed, "(" + "|".join(layers) + ")$")
            baseline = _time_s(trace, BASELINE, WORKERS, GBITS, Order.ROUND_ROBIN)
            for label, mechanism in FIGURE_MECHANISMS.items():
                number = published_times.FASTER_RESNET_200.get(label) if (name, speed) == ("resnet200", 3.0) else None
                seconds = _time_s(trace, mechanism, WORKERS, GBITS, Order.ROUND_ROBIN)
                yield PublishedCell(
                    table, label, f"{speed:g} times as fast (x)", number, baseline / seconds, model.kind
                )

    return cells


# ---- other papers --------------------------------------------------------------------------------------------------


def ralp_2() -> Iterator[PublishedCell]:
    """GB through the network in one step; 2^30 bytes each, as in the paper."""
    for name, numbers in published_times.RALP_2.items():
        architecture = build(name)
        layers = [layer for layer in architecture.layers if not layer.auxiliary]
        model = 4 * sum(v.elements for layer in layers for v in layer.trained)
        sent = 4 * min(costs(architecture, published_times.RALP_BATCH[name]))
        machines = published_times.RALP_MACHINES
        simulated = (model, 2 * model * (machines - 1), 2 * machines * sent)
        for column, number, size in zip(("Model size", "Horovod", "RALP"), numbers, simulated, strict=True):
            yield PublishedCell("ralp2", name, f"{column} (GB)", number, size / 2**30)


def costs(architecture: Architecture, batch: int) -> list[int]:
    """Elements that a split after each candidate sends: its outputs and the parameters before it.

    Candidates are neither between nor before convolutions. Source: "RALP", section 4.3, step 3.
    """
    layers = [layer for layer in architecture.layers if not layer.auxiliary]
    last = max(i for i, layer in enumerate(layers) if layer.kind == "conv")
    before = [sum(v.elements for layer in layers[: i + 1] for v in layer.trained) for i in range(len(layers))]
    return [batch * layers[i].outputs + before[i] for i in range(last, len(layers))]


def poseidon_1() -> Iterator[PublishedCell]:
    """Parameters through a node for the paper's example: M = N = 4096, K = 32, eight workers and servers."""
    m = n = 4096
    batch, nodes = 32, 8
    factors = batch * (m + n)
    apart = link_elements(find(f"ps:servers={nodes}:assign=even").schedule(nodes), m * n)
    shared = link_elements(find(f"ps:servers={nodes}:assign=even:colocated").schedule(nodes), m * n)

    def adam(on_worker: bool) -> tuple[dict[str, tuple[int, int]], ...]:
        return link_elements(_to(nodes, on_worker), factors), link_elements(_from(nodes, on_worker), m * n)

    counted = {
        ("PS", "Server"): sum(apart[server(0)]),
        ("PS", "Worker"): sum(apart[worker(0)]),
        ("PS", "Server & Worker"): sum(shared[worker(0)]),
        ("SFB", "Worker"): sum(link_elements(_broadcast(nodes), factors)[worker(0)]),
        ("Adam (max)", "Server"): sum(sum(each[server(0)]) for each in adam(on_worker=False)),
        ("Adam (max)", "Worker"): sum(sum(each[worker(1)]) for each in adam(on_worker=False)),
        ("Adam (max)", "Server & Worker"): sum(sum(each[worker(0)]) for each in adam(on_worker=True)),
    }
    for (row, column), number in published_times.poseidon_1(m, n, batch, nodes, nodes).items():
        yield PublishedCell("poseidon1", row, column, number, counted[row, column])


def _broadcast(n: int) -> Schedule:
    """Every worker sends its sufficient factors to every other."""
    nodes: dict[str, tuple[Operation, ...]] = {
        worker(r): (
            *(Send(worker(other), 0) for other in range(n) if other != r),
            *(Receive(worker(other), 0, reduce=True) for other in range(n) if other != r),
        )
        for r in range(n)
    }
    return Schedule("sfb", n, 1, nodes)


def _to(n: int, on_worker: bool) -> Schedule:
    """Adam's way up: workers send factors to the node with the matrix, a server or worker 0."""
    holder, others = _holder(n, on_worker)
    nodes: dict[str, tuple[Send | Receive, ...]] = {node: (Send(holder, 0),) for node in others}
    return Schedule("adam", n, 1, {**nodes, holder: tuple(Receive(node, 0, reduce=True) for node in others)})


def _from(n: int, on_worker: bool) -> Schedule:
    """Adam's way down: the matrix for each worker."""
    holder, others = _holder(n, on_worker)
    nodes: dict[str, tuple[Send | Receive, ...]] = {node: (Receive(holder, 0, reduce=False),) for node in others}
    return Schedule("adam", n, 1, {**nodes, holder: tuple(Send(node, 0) for node in others)})


def _holder(n: int, on_worker: bool) -> tuple[str, list[str]]:
    if on_worker:
        return worker(0), [worker(r) for r in range(1, n)]
    return server(0), [worker(r) for r in range(n)]


TABLES: dict[str, Callable[[], Iterator[PublishedCell]]] = {
    "1": table_1,
    "4": table_4,
    "6": table_6,
    "7": table_7,
    "8": table_8,
    "9": table_9,
    "10": table_10,
    "figure2": figure_2,
    "figure3": _by_bandwidth("figure3", "inception3"),
    "figure4": _by_bandwidth("figure4", "resnet200"),
    "figure5": _by_bandwidth("figure5", "vgg16"),
    "figure6": _by_workers("figure6", "inception3"),
    "figure7": _by_workers("figure7", "resnet200"),
    "figure8": _by_workers("figure8", "vgg16"),
    "figure9": _by_modules("figure9", "Mixed_6e"),
    "figure10": _by_modules("figure10", "Mixed_5d"),
    "figure11": _by_speed("figure11", "inception3"),
    "figure12": _by_speed("figure12", "resnet200"),
    "ralp2": ralp_2,
    "ralp3": ralp_3,
    "poseidon1": poseidon_1,
    "poseidon8": poseidon_8,
    "cgdp2": cgdp_2,
}

# Explanations of the cells that differ from the published ones.
NOTES = {
    "1": "VGG-16 with 2 and 8 servers: the first workers' gradients travel while the last parameters are distributed, "
    "which the published numbers do not show. Inception-v3 with 8: compute-bound, but not fitted.",
    "7": "Inception-v3 on 4 servers (0.451) and Resnet-200 on 8 (0.22) contradict Table 1, where the iteration with 8 "
    "servers takes Resnet-200 as long as with 4, and Inception-v3 with 4 servers 60 % of that with one.",
    "10": "Inception-v3 with aggregation at 100 Gbps: the span that fits it (0.396 s) would put Table 9 beyond 12 %.",
}


def title_of(table: str) -> str:
    """A table's title: "Table 4", "Figure 3", "RALP, Table 2"."""
    if table == "poseidon8":
        return "Poseidon, what its text says of figures 5, 6 and 8"
    papers = {"figure": "Figure ", "ralp": "RALP, Table ", "poseidon": "Poseidon, Table ", "cgdp": "CGDP, Table "}
    for short, title in papers.items():
        if table.startswith(short):
            return title + table.removeprefix(short)
    return f"Table {table}"


def find_table(name: str) -> tuple[str, Callable[[], Iterator[PublishedCell]]]:
    """Find a table by its name: `4`, `table4`, `figure3`, `fig3`, `ralp2`, ...

    Raises:
        SimulationError: there is no such table; the message lists the legal ones.
    """
    plain = name.lower().replace("-", "").replace(" ", "").removeprefix("table")
    if plain.startswith("fig") and not plain.startswith("figure"):
        plain = plain.replace("fig", "figure", 1)
    if plain not in TABLES:
        raise SimulationError(f"unknown table {name!r}; legal are {', '.join(TABLES)}")
    return plain, TABLES[plain]
