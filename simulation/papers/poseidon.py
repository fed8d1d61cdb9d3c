"""Tables and figures of "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters".

The paper prints images per second of one node. How that time is divided between the passes (`backward = 2 x forward`)
is assumed, and it is spread over the layers by their operations. Times are simulated twice: `nominal`, on links of the
printed bandwidth, and `as fast as seen`, on links as fast as one published cell shows parameter servers to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial

from hostlib.mechanisms.mechanism import find
from hostlib.schedules.schedule import Operation, Receive, Schedule, Send, link_elements, server, worker
from hostlib.strategies.strategy import choose
from simulation.models import published_times
from simulation.models.architectures import build
from simulation.models.described_model import layers_of
from simulation.models.synthetic_trace import spread
from simulation.papers import published_numbers
from simulation.papers.cell import ASSUMED, COUNTED, FITTED, Cell, Table, without_links
from simulation.papers.semantics import papers_network, papers_workload
from simulation.simulator.play import Job, play

# Bits per second that parameter servers achieved on a node's link, each derived from the published cell named beside
# it.
SEEN = {10: 5.7e9, 40: 13.4e9}  # from VGG19's and VGG19-22K's WFBP on Caffe
FITTED_CELLS = {("Caffe", "vgg19", 10, 16, "WFBP"), ("Caffe", "vgg19_22k", 40, 32, "WFBP")}
PASSES, LINKS = "backward = 2 x forward", "link speed"
ASSUMED_TFLOPS = 10.0  # of ResNet-152, whose images per second the paper does not print
NODES, BANDWIDTHS = (1, 2, 4, 8, 16, 32), (5, 10, 20, 30, 40)
FIGURE_8_NODES = 16

# Every node is a worker and a server. PS: after the backward pass. WFBP: during it, with even shares of every tensor.
# TensorFlow: during it, with whole tensors on a server each. Poseidon: pairs of 2 MB, and factors where those are less.
SYSTEMS = {
    "PS": "bsp/ps:servers={n}:assign=even:colocated",
    "WFBP": "ps:servers={n}:assign=even:colocated",
    "TensorFlow": "ps:servers={n}:colocated",
    "Poseidon": "poseidon:servers={n}:colocated",
    "Adam": "adam:servers={n}/ps:servers={n}:assign=even:colocated",
    "one bit": "onebit/ps:servers={n}:assign=even:colocated",
}


@cache
def speedup(model: str, bits_s: float, nodes: int, system: str, one_s: float, batch: int, step_s: float) -> float:
    """Throughput of `nodes` nodes relative to one node.

    Args:
        one_s: one node's time of a batch, which speed-ups are relative to.
        step_s: a worker's own time of a batch; more than `one_s` if the system costs time on the node itself.
    """
    return nodes * one_s / _step_s(model, bits_s, nodes, system, batch, step_s)


@cache
def _step_s(model: str, bits_s: float, nodes: int, system: str, batch: int, step_s: float) -> float:
    if nodes == 1:
        return step_s
    choice, architecture = choose(SYSTEMS[system].format(n=nodes)), build(model)
    trace = spread(architecture, step_s / 3, step_s * 2 / 3, first_backward=True)
    plan = choice.plan(trace, layers_of(architecture), nodes, batch)
    job = Job(papers_workload(plan), choice.mechanism, nodes, bare=True)
    return play(papers_network(bits_s), [job]).outcomes[0].iteration_s


def text(bandwidth: float) -> Iterator[Cell]:
    """Speed-ups over one node that the text states."""
    for key, times in published_times.POSEIDON_8.items():
        engine, model, gbits, nodes, how = key
        row = f"{model} on {engine}, {gbits} Gbit/s, {nodes} nodes: {how}"
        one_s = published_times.POSEIDON_BATCH / published_times.POSEIDON_IMAGES_S[engine, model]
        batch = published_times.POSEIDON_BATCH
        for column, bits_s in (("nominal", gbits * 1e9), ("as fast as seen", SEEN[gbits])):
            simulated = speedup(model, bits_s * bandwidth, nodes, how, one_s, batch, one_s)
            rests_on = PASSES if column == "nominal" else f"{LINKS}, {PASSES}"
            if column != "nominal" and key in FITTED_CELLS:
                rests_on = f"{LINKS} (this cell), {PASSES}"
            kind = ASSUMED if column == "nominal" else FITTED
            yield Cell("poseidon8", row, column, times, simulated, kind, rests_on, nodes * one_s / simulated)


def table_3() -> Iterator[Cell]:
    """Parameters of the networks, counted."""
    for model, (parameters, _) in published_numbers.POSEIDON_3.items():
        layers = [layer for layer in build(model).layers if not layer.auxiliary]
        elements = sum(v.elements for layer in layers for v in layer.trained)
        yield Cell("poseidon3", model, "# Params", parameters, elements, COUNTED)


# ---- figures -------------------------------------------------------------------------------------------------------


def _one_node_s(engine: str, model: str) -> tuple[float, int]:
    """A batch's time on one node, and its examples."""
    images_s = published_numbers.POSEIDON_CAFFE[model][0] if engine == "Caffe" else None
    batch = published_numbers.POSEIDON_3[model][1]
    return batch / (images_s or published_numbers.POSEIDON_TENSORFLOW[model]), batch


def _scaling(table: str, engine: str, systems: Sequence[str], bandwidth: float) -> Iterator[Cell]:
    """Figures 5 and 6: speed-up against nodes at 40 Gbit/s."""
    names = published_numbers.POSEIDON_CAFFE if engine == "Caffe" else published_numbers.POSEIDON_TENSORFLOW
    for links, gbits in (("nominal", 40e9), ("as fast as seen", SEEN[40])):
        kind, rests_on = (ASSUMED, PASSES) if links == "nominal" else (FITTED, f"{LINKS}, {PASSES}")
        for model in names:
            one_s, batch = _one_node_s(engine, model)
            for system in systems:
                # Copies between GPU and host cost Caffe+PS time on a single node, too.
                step_s = batch / published_numbers.POSEIDON_CAFFE[model][1] if system == "PS" else one_s
                for nodes in NODES:
                    simulated = speedup(model, gbits * bandwidth, nodes, system, one_s, batch, step_s)
                    number = _printed(engine, model, nodes, system)
                    row, column = f"{model}, {links}: {system}", f"{nodes} nodes (x)"
                    seconds = nodes * one_s / simulated
                    yield Cell(table, row, column, number, simulated, kind, rests_on, seconds)


def _printed(engine: str, model: str, nodes: int, system: str) -> float | None:
    if (engine, model, nodes, system) == ("TensorFlow", "inception3", 32, "TensorFlow"):
        return published_numbers.POSEIDON_6_TENSORFLOW
    return published_times.POSEIDON_8.get((engine, model, 40, nodes, system))


def figure_7(bandwidth: float) -> Iterator[Cell]:
    """The share of a step in which the GPU of one of eight nodes waits."""
    for links, bits_s in (("nominal", 40e9), ("as fast as seen", SEEN[40])):
        kind, rests_on = (ASSUMED, PASSES) if links == "nominal" else (FITTED, f"{LINKS}, {PASSES}")
        for model in published_numbers.POSEIDON_TENSORFLOW:
            one_s, batch = _one_node_s("TensorFlow", model)
            for system in ("TensorFlow", "WFBP", "Poseidon"):
                seconds = _step_s(model, bits_s * bandwidth, 8, system, batch, one_s)
                row = f"{model}: {system}"
                stalled = 1 - one_s / seconds
                yield Cell("poseidon-figure7", row, f"{links}, stalled", None, stalled, kind, rests_on, seconds)


def figure_8(bandwidth: float) -> Iterator[Cell]:
    """Speed-up of 16 nodes against bandwidth, of which parameter servers reach as much as at 10 Gbit/s."""
    reached = SEEN[10] / 10e9
    for links, share in (("nominal", 1.0), ("as fast as seen", reached)):
        kind, rests_on = (ASSUMED, PASSES) if links == "nominal" else (FITTED, f"{LINKS}, {PASSES}")
        for model in published_numbers.POSEIDON_CAFFE:
            one_s, batch = _one_node_s("Caffe", model)
            for system in ("WFBP", "Poseidon"):
                for gbits in BANDWIDTHS:
                    bits_s = gbits * 1e9 * share * bandwidth
                    simulated = speedup(model, bits_s, FIGURE_8_NODES, system, one_s, batch, one_s)
                    number = published_times.POSEIDON_8.get(("Caffe", model, gbits, FIGURE_8_NODES, system))
                    row, seconds = f"{model}, {links}: {system}", FIGURE_8_NODES * one_s / simulated
                    column = f"{gbits} Gbit/s (x)"
                    yield Cell("poseidon-figure8", row, column, number, simulated, kind, rests_on, seconds)


def figure_9(bandwidth: float) -> Iterator[Cell]:
    """Speed-up of ResNet-152 against nodes at 40 Gbit/s; its images per second are assumed."""
    batch = published_numbers.POSEIDON_3["resnet152"][1]
    one_s = 3 * batch * sum(layer.flops for layer in build("resnet152").layers) / (ASSUMED_TFLOPS * 1e12)
    for system in ("TensorFlow", "Poseidon"):
        for nodes in NODES:
            simulated = speedup("resnet152", 40e9 * bandwidth, nodes, system, one_s, batch, one_s)
            number = published_numbers.POSEIDON_9_NODES_32 if (system, nodes) == ("Poseidon", 32) else None
            rests_on, seconds = f"compute rate, {PASSES}", nodes * one_s / simulated
            yield Cell("poseidon-figure9", system, f"{nodes} nodes (x)", number, simulated, ASSUMED, rests_on, seconds)


def figure_10(_bandwidth: float) -> Iterator[Cell]:
    """Megabytes that each of eight nodes sends and receives in one iteration of VGG19."""
    for label, system in (("TF-WFBP", "WFBP"), ("Adam", "Adam"), ("Poseidon", "Poseidon")):
        choice, architecture = choose(SYSTEMS[system].format(n=8)), build("vgg19")
        plan = choice.plan(spread(architecture, 0.1, 0.2, first_backward=True), layers_of(architecture), 8, 32)
        job = Job(papers_workload(plan), choice.mechanism, 8, bare=True)
        carried = play(papers_network(40e9), [job]).link_bytes
        for node in range(8):
            sent, received = carried[worker(node)]
            yield Cell("poseidon-figure10", label, f"node {node} (MB)", None, 1e-6 * (sent + received), COUNTED)


def one_bit(bandwidth: float) -> Iterator[Cell]:
    """Speed-ups of CNTK with one bit per gradient on VGG19 at 40 Gbit/s, as the text compares them."""
    one_s, batch = _one_node_s("Caffe", "vgg19")
    for nodes, number in published_numbers.POSEIDON_ONE_BIT.items():
        simulated = speedup("vgg19", 40e9 * bandwidth, nodes, "one bit", one_s, batch, one_s)
        rests_on = f"images/s of CNTK, {PASSES}"
        seconds = nodes * one_s / simulated
        yield Cell("poseidon-cntk", "vgg19", f"{nodes} nodes (x)", number, simulated, ASSUMED, rests_on, seconds)


# ---- table 1 -------------------------------------------------------------------------------------------------------


def table_1() -> Iterator[Cell]:
    """Parameters through a node for the paper's example: M = N = 4096, K = 32, eight workers and servers."""
    m = n = 4096
    batch, nodes = 32, 8
    factors = batch * (m + n)
    apart = link_elements(find(f"ps:servers={nodes}:assign=even").schedule(nodes), m * n)
    shared = link_elements(find(f"ps:servers={nodes}:assign=even:colocated").schedule(nodes), m * n)

    def adam(on_worker: bool) -> tuple[dict[str, tuple[int, int]], ...]:
        return link_elements(_to(nodes, on_worker), factors), link_elements(_from(nodes, on_worker), m * n)

    carried = {
        ("PS", "Server"): sum(apart[server(0)]),
        ("PS", "Worker"): sum(apart[worker(0)]),
        ("PS", "Server & Worker"): sum(shared[worker(0)]),
        ("SFB", "Worker"): sum(link_elements(_broadcast(nodes), factors)[worker(0)]),
        ("Adam (max)", "Server"): sum(sum(each[server(0)]) for each in adam(on_worker=False)),
        ("Adam (max)", "Worker"): sum(sum(each[worker(1)]) for each in adam(on_worker=False)),
        ("Adam (max)", "Server & Worker"): sum(sum(each[worker(0)]) for each in adam(on_worker=True)),
    }
    for (row, column), number in published_times.poseidon_1(m, n, batch, nodes, nodes).items():
        yield Cell("poseidon1", row, column, number, carried[row, column], COUNTED)


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


TABLES: dict[str, Table] = {
    "poseidon1": without_links(table_1),
    "poseidon3": without_links(table_3),
    "poseidon8": text,
    "poseidon-figure5": partial(_scaling, "poseidon-figure5", "Caffe", ("PS", "WFBP", "Poseidon")),
    "poseidon-figure6": partial(_scaling, "poseidon-figure6", "TensorFlow", ("TensorFlow", "WFBP", "Poseidon")),
    "poseidon-figure7": figure_7,
    "poseidon-figure8": figure_8,
    "poseidon-figure9": figure_9,
    "poseidon-figure10": figure_10,
    "poseidon-cntk": one_bit,
}

NOTES = {
    "poseidon3": "GoogLeNet's convolutions and one layer have 7 million parameters, in CGDP's Table 1, too.",
    "poseidon-figure6": "TensorFlow on Inception-V3 with 32 nodes: 10 in section 5.1, 20 in the introduction.",
    "poseidon-cntk": "No cell moves with the network: the published numbers are CNTK's own overhead.",
}
