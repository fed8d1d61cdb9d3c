"""Tables of the measurements' pages, or rows of them, that are computed and not measured: computed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from emulation.experiments.runner import RunOptions
from emulation.suite.catalogue import DATASETS, NETWORKS, SEQUENTIAL
from emulation.suite.selection import Selection
from emulation.suite.suite_comparison import Comparison, compare
from emulation.suite.suite_run import SuiteRun
from hostlib.strategies.builtin.cgdp.cost_model import (
    ACCUMULATION_GB_S,
    BROADCAST_GB_S,
    SYNCHRONISATION_US,
    costs_of,
    partition,
    predict,
)
from hostlib.strategies.builtin.poseidon.traffic import Synchronisation, per_node
from hostlib.strategies.common.sync_cost import InformationBook
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Trace
from simulation.models.synthetic_trace import model_layers, model_trace
from simulation.papers import poseidon
from simulation.papers.semantics import papers_network, papers_workload
from simulation.predictors.builtin.torchgpipe import share_of_sequential
from simulation.simulator.network import Network
from simulation.simulator.play import Job, play

Rows = dict[str, list[float]]


def _iteration_s(model: str, trace: Trace, mechanism: str, workers: int, network: Network) -> float:
    choice = choose(mechanism)
    plan = choice.plan(trace, model_layers(model, 224), workers, 32)
    return play(network, [Job(papers_workload(plan), choice.mechanism, workers)]).outcomes[0].iteration_s


def cost_model() -> Rows:
    """cgdp-cost.md: chunks, the cost model, and two simulations, in milliseconds from the backward pass's start."""
    trace = model_trace("vgg16", tflops=10.0)
    forward_s = sum(layer.forward_ns for layer in trace.layers) / 1e9
    layers = [layer.members for layer in model_layers("vgg16", 224) if layer.params]
    costs = costs_of(trace, SYNCHRONISATION_US * 1e-6, ACCUMULATION_GB_S * 1e9, BROADCAST_GB_S * 1e9, layers)
    rows = {}
    for size in (1, 2, 4, 8):
        chunks = partition(len(layers), size)
        played = [
            1e3 * (_iteration_s("vgg16", trace, f"cgdp:chunk={size}{way}", 4, papers_network(25e9)) - forward_s)
            for way in ("", "/ring")
        ]
        rows[str(size)] = [len(chunks), 1e3 * predict(costs, chunks).total, *played]
    return rows


def factors_by_multicast() -> Rows:
    """emulated-strategies.md: sufficient factors between racks, by peers and by the switches."""
    trace, star = model_trace("vgg19", tflops=10.0), papers_network(1e9)
    racks = replace(star, racks=4, oversubscription=4.0)

    def seconds(mechanism: str, network: Network) -> list[float]:
        return [_iteration_s("vgg19", trace, mechanism, 16, network)]

    return {
        "4 racks, 4:1, by peers": seconds("sfb/ring", racks),
        "4 racks, 4:1, by multicast": seconds("sfb:multicast/ring", racks),
        "one switch, either way": seconds("sfb/ring", star),
    }


def _node_mb(scheme: Synchronisation) -> list[float]:
    book = InformationBook(model_layers("vgg19"), 8, 8, 32)
    return [1e-6 * (node.sent + node.received) for node in per_node(book, scheme).values()]


def node_bytes() -> Rows:
    """emulated-strategies.md: megabytes of each node by the formulas, and as simulated."""
    schemes: tuple[Synchronisation, ...] = ("ps", "sfb", "adam", "hybcomm", "onebit")
    simulated = [cell.simulated for cell in poseidon.TABLES["poseidon-figure10"](1.0) if cell.row == "Poseidon"]
    return {**{f"{scheme}, formula": _node_mb(scheme) for scheme in schemes}, "poseidon, simulated": simulated}


def node_bytes_in_short() -> Rows:
    """poseidon-convergence.md: the same, all nodes or the least and the most loaded one."""
    adam = _node_mb("adam")
    return {"ps": _node_mb("ps")[:1], "hybcomm": _node_mb("hybcomm")[:1], "adam": [min(adam), max(adam)]}


@cache
def _recommender() -> tuple[Comparison, Comparison]:
    """What recommender.md compares: a ring and GPipe; and only the ring, by the other predictor of it."""
    frameworks = (SEQUENTIAL, "ring", "gpipe:recompute=yes")
    selection = Selection(tuple(DATASETS), NETWORKS, frameworks, gpu_memory="24GB")
    with TemporaryDirectory() as made:
        folders = {name: Path(made) / name for name in ("simulator", "horovod", "horovod-fusion", "gpipe")}
        for name, folder in folders.items():
            SuiteRun(selection, RunOptions(folder, predictor=name)).go(lambda event: None)
        true, horovod, fusion, gpipe = folders.values()
        return compare(true, [horovod, gpipe]), compare(true, [fusion, gpipe])


def _errors(comparison: Comparison, framework: str) -> Rows:
    rows: Rows = {}
    for each in comparison.predictions:
        if each.row["framework"] == framework:
            rows.setdefault(each.row["network"], []).append(100 * each.error)
    return rows


def ring_errors() -> Rows:
    """recommender.md: equation 5.1 against the simulator, in percent."""
    return _errors(_recommender()[0], "ring")


def fusion_errors() -> Rows:
    """recommender.md: tensor fusion against the simulator, in percent."""
    return _errors(_recommender()[1], "ring")


def gpipe_errors() -> Rows:
    """recommender.md: equations 6.1 and 6.2 against the simulator, in percent."""
    return _errors(_recommender()[0], "gpipe:recompute=yes")


def right_recommendations() -> Rows:
    """recommender.md: how many are right, by data set and of all."""
    rows: Rows = {}
    for name, comparison in zip(("horovod, gpipe", "horovod-fusion, gpipe"), _recommender(), strict=True):
        found = comparison.recommendations
        rows[name] = []
        for datasets in (*([each] for each in DATASETS), DATASETS):
            mine = [each.is_right for each in found if each.dataset in datasets]
            rows[name] += [sum(mine), len(mine)]
    return rows


def ways_to_recommend() -> Rows:
    """recommender.md: how many are right, the worst case, seconds, and those of all workers."""
    rows: Rows = {}
    for way in _recommender()[0].alternatives:
        wrong = [100 * each.regret for each in way.recommendations if each.regret]
        rows[way.name] = [
            way.right,
            len(way.recommendations),
            *([max(wrong)] if wrong else []),
            way.took_s,
            way.worker_s,
        ]
    return rows


def microbatches() -> Rows:
    """recommender.md: equation 6.1 for table 6.1's configurations, and seconds of an epoch by simulation."""
    networks = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "resnet152": "ResNet-152"}
    rows: Rows = {"equation 6.1": [], **{f"{name}, simulated": [] for name in networks.values()}}
    for count, batch in ((12, 288), (12, 384), (20, 640), (28, 336), (30, 480)):
        rows["equation 6.1"].append(share_of_sequential(4, count))
        framework = f"gpipe:microbatches={count}:recompute=yes"
        selection = Selection(("imagenet",), tuple(networks), (framework,), batch=batch // 4)
        with TemporaryDirectory() as made:
            for row in SuiteRun(selection, RunOptions(Path(made) / "suite")).go(lambda event: None):
                rows[f"{networks[row['network']]}, simulated"].append(row["epoch_s"])
    return rows


# By page, section and number of the table.
TABLES: dict[tuple[str, str, int], Callable[[], Rows]] = {
    ("cgdp-cost", "Cost model against simulator", 0): cost_model,
    ("emulated-strategies", "Bytes of each node", 0): node_bytes,
    ("emulated-strategies", "Multicast of factors", 0): factors_by_multicast,
    ("recommender", "Horovod", 0): ring_errors,
    ("recommender", "Horovod", 1): fusion_errors,
    ("recommender", "GPipe", 0): gpipe_errors,
    ("recommender", "Micro-batches", 0): microbatches,
    ("recommender", "Recommendations", 1): right_recommendations,
    ("recommender", "Ways to recommend", 0): ways_to_recommend,
    ("poseidon-convergence", "Bytes of VGG19 on eight nodes", 0): node_bytes_in_short,
}
