"""Tables and figures of "Accelerated Training for CNN Distributed Deep Learning through Automatic Resource-Aware Layer
Placement" (RALP).

The paper prints no compute times. Layers compute at ASSUMED_TFLOPS, and their backward pass takes twice the forward
pass. Times are simulated twice: `nominal`, on links of the printed bandwidth, and `as fast as seen`, on links as fast
as one published cell shows the same software to be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from hostlib.strategies.builtin.ralp.placement import skewness
from hostlib.strategies.strategy import choose
from simulation.models import published_times
from simulation.models.architectures import Architecture, Layer, Variable, build
from simulation.models.described_model import layers_of
from simulation.models.synthetic_trace import spread
from simulation.papers import published_numbers
from simulation.papers.cell import ASSUMED, COUNTED, FITTED, Cell, Table, without_links
from simulation.papers.semantics import papers_network, papers_workload
from simulation.simulator.play import Job, Outcome, play
from simulation.simulator.workload import Workload

ASSUMED_TFLOPS = 10.0
NOMINAL = 56e9
SEEN = 1.76e9  # TensorFlow's parameter servers: fitted to eight VGG11 jobs
SEEN_RING = 8.97e9  # Horovod: 2 S (W - 1) bytes of all eight machines at 8.97 GB/s, section 6.2
MACHINES, WORKERS = 8, 3
IMAGENET_22K = 21_841
# Examples of a worker: tf_cnn_benchmarks' default for each network.
BATCHES = {
    "alexnet": 512,
    "googlenet": 32,
    "inception3": 32,
    "lenet": 32,
    "overfeat": 32,
    "resnet50": 64,
    "vgg11": 64,
    "vgg19": 64,
}
COMPUTE, LINKS = "compute rate", "link speed"


@cache
def network(model: str, classes: int = 0) -> Architecture:
    """A benchmark's network, with another number of classes if one is given."""
    architecture = build(model)
    if not classes:
        return architecture
    last = architecture.layers[-1]
    return replace(architecture, layers=(*architecture.layers[:-1], _with_classes(last, classes)))


def _with_classes(layer: Layer, classes: int) -> Layer:
    inputs = layer.variables[0].elements // layer.outputs
    weights, biases = (
        Variable(v.name, elements) for v, elements in zip(layer.variables, (inputs * classes, classes), strict=True)
    )
    return replace(layer, variables=(weights, biases), flops=2 * inputs * classes, outputs=classes)


@dataclass(frozen=True, slots=True)
class Training:
    """A kind of training job: a network under a mechanism, on so many workers."""

    model: str
    mechanism: str
    workers: int = WORKERS
    classes: int = 0

    @property
    def compute_s(self) -> float:
        """One worker's two passes."""
        flops = sum(layer.flops for layer in network(self.model, self.classes).layers)
        return 3 * BATCHES[self.model] * flops / (ASSUMED_TFLOPS * 1e12)

    def job(self, hosts: tuple[int, ...], iterations: int = 1) -> Job:
        """A job on machines: its workers' and then its servers'."""
        workload = _workload(self)
        mechanism = choose(self.mechanism).mechanism
        return Job(workload, mechanism, self.workers, bare=True, hosts=hosts, iterations=iterations)

    def images_s(self, seconds: float) -> float:
        return self.workers * BATCHES[self.model] / seconds


@cache
def _workload(training: Training) -> Workload:
    architecture, batch = network(training.model, training.classes), BATCHES[training.model]
    trace = spread(architecture, training.compute_s / 3, training.compute_s * 2 / 3, first_backward=True)
    plan = choose(training.mechanism).plan(trace, layers_of(architecture), training.workers, batch)
    return papers_workload(plan)


# ---- tables --------------------------------------------------------------------------------------------------------


def table_1() -> Iterator[Cell]:
    """Skewness: of the layers' indices, weighted by their parameters."""
    for model, number in published_numbers.RALP_1.items():
        yield Cell("ralp1", model, "Skewness factor", number, skewness(layers_of(build(model))), COUNTED)


def table_2() -> Iterator[Cell]:
    """GB through the network in one step; 2^30 bytes each, as in the paper."""
    for name, numbers in published_times.RALP_2.items():
        architecture = build(name)
        layers = [layer for layer in architecture.layers if not layer.auxiliary]
        model = 4 * sum(v.elements for layer in layers for v in layer.trained)
        sent = 4 * min(costs(architecture, published_times.RALP_BATCH[name]))
        simulated = (model, 2 * model * (MACHINES - 1), 2 * MACHINES * sent)
        for column, number, size in zip(("Model size", "Horovod", "RALP"), numbers, simulated, strict=True):
            yield Cell("ralp2", name, f"{column} (GB)", number, size / 2**30, COUNTED)


def costs(architecture: Architecture, batch: int) -> list[int]:
    """Elements that a split after each candidate sends: its outputs and the parameters before it.

    Candidates are neither between nor before convolutions. Source: "RALP", section 4.3, step 3.
    """
    layers = [layer for layer in architecture.layers if not layer.auxiliary]
    last = max(i for i, layer in enumerate(layers) if layer.kind == "conv")
    before = [sum(v.elements for layer in layers[: i + 1] for v in layer.trained) for i in range(len(layers))]
    return [batch * layers[i].outputs + before[i] for i in range(last, len(layers))]


def table_3(bandwidth: float) -> Iterator[Cell]:
    """Images per second of all jobs of a network together, and RALP's gain.

    The rows with four jobs are one experiment, in which the two networks share the machines.
    """
    for model, jobs in (("vgg11", 8), ("resnet50", 8)):
        for column, bits_s in (("nominal", NOMINAL), ("as fast as seen", SEEN)):
            rates = {how: _alone(model, jobs, how, bits_s * bandwidth) for how in ("ps", "ralp/ps")}
            yield from _rates_and_gain(f"{model} x {jobs}", column, published_times.RALP_3[model, jobs], rates)
    columns = (
        ("nominal", NOMINAL, True),
        ("as fast as seen", SEEN, True),
        ("as fast as seen, not alternating", SEEN, False),
    )
    for column, bits_s, alternating in columns:
        played = {how: mixed(how, how, bits_s * bandwidth, alternating) for how in ("ps", "ralp/ps")}
        for model in ("vgg11", "resnet50"):
            rates = {how: rate[model] for how, rate in played.items()}
            yield from _rates_and_gain(f"{model} x 4, mixed", column, published_times.RALP_3[model, 4], rates)


def _rates_and_gain(row: str, column: str, numbers: tuple[float, float], rates: dict[str, float]) -> Iterator[Cell]:
    servers, ralp = numbers
    kind, rests_on = (ASSUMED, COMPUTE) if column == "nominal" else (FITTED, f"{LINKS}, {COMPUTE}")
    for label, number, how in (("parameter servers", servers, "ps"), ("RALP", ralp, "ralp/ps")):
        fitted_to = kind == FITTED and (row, how) == ("vgg11 x 8", "ps")
        why = rests_on.replace(LINKS, f"{LINKS} (this cell)") if fitted_to else rests_on
        yield Cell("ralp3", f"{row}: {label}, images/s", column, number, rates[how], kind, why, 1 / rates[how])
    gain, published = rates["ralp/ps"] / rates["ps"], round(ralp / servers, 2)
    yield Cell("ralp3", f"{row}: gain", column, published, gain, kind, rests_on, 1 / rates["ralp/ps"])


@cache
def _alone(model: str, jobs: int, mechanism: str, bits_s: float) -> float:
    """Images per second of jobs of one kind on eight machines; each uses four of them, assigned in turn."""
    training = Training(model, mechanism)
    played = [training.job(_machines(number, jobs)) for number in range(jobs)]
    outcomes = play(papers_network(bits_s), played).outcomes
    return sum(training.images_s(outcome.iteration_s) for outcome in outcomes)


def _machines(job: int, jobs: int) -> tuple[int, ...]:
    """Machines of a job's workers and then of its server: no two servers share one."""
    server = job * MACHINES // jobs
    return (*((server + step) % MACHINES for step in range(1, WORKERS + 1)), server)


@cache
def mixed(vgg11: str, resnet50: str, bits_s: float, alternating: bool = True) -> dict[str, float]:
    """Images per second of four VGG11 and four ResNet-50 jobs on eight machines, while all of them train.

    Args:
        vgg11, resnet50: their mechanisms.
        alternating: servers of the two kinds are on every other machine; otherwise on one half of the machines each.
    """
    kinds = {"vgg11": Training("vgg11", vgg11), "resnet50": Training("resnet50", resnet50)}
    order = ["vgg11", "resnet50"] * 4 if alternating else ["vgg11"] * 4 + ["resnet50"] * 4
    iterations = {"vgg11": 4 if vgg11 == "ps" else 25, "resnet50": 25}
    jobs = [kinds[model].job(_machines(number, len(order)), iterations[model]) for number, model in enumerate(order)]
    outcomes = play(papers_network(bits_s), jobs).outcomes
    return {
        model: sum(
            kinds[model].images_s(1 / rate)
            for name, rate in zip(order, _iterations_per_s(outcomes), strict=True)
            if name == model
        )
        for model in kinds
    }


def _iterations_per_s(outcomes: Sequence[Outcome]) -> list[float]:
    """Each job's rate from when all have done an iteration until the first has done its last."""
    first_ns = max(outcome.iteration_end_ns[1] for outcome in outcomes)
    last_ns = min(outcome.iteration_end_ns[-1] for outcome in outcomes)
    return [
        (_done(outcome.iteration_end_ns, last_ns) - _done(outcome.iteration_end_ns, first_ns))
        / (last_ns - first_ns)
        * 1e9
        for outcome in outcomes
    ]


def _done(ends_ns: Sequence[float], at_ns: float) -> float:
    """Iterations done at a time, with the part of the one under way."""
    whole = bisect_right(ends_ns, at_ns) - 1
    if whole + 1 == len(ends_ns):
        return whole
    return whole + (at_ns - ends_ns[whole]) / (ends_ns[whole + 1] - ends_ns[whole])


def table_4(bandwidth: float) -> Iterator[Cell]:
    """The mixed experiment with one kind of job under RALP and the other under parameter servers.

    Speed-ups are over Table 3's mixed experiment with parameter servers for all.
    """
    both = {model: published_times.RALP_3[model, 4][0] for model in ("vgg11", "resnet50")}
    for column, bits_s in (("nominal", NOMINAL), ("as fast as seen", SEEN)):
        kind, rests_on = (ASSUMED, COMPUTE) if column == "nominal" else (FITTED, f"{LINKS}, {COMPUTE}")
        base = mixed("ps", "ps", bits_s * bandwidth)
        for vgg11, resnet50 in (("ralp/ps", "ps"), ("ps", "ralp/ps")):
            rates = mixed(vgg11, resnet50, bits_s * bandwidth)
            for model, how, other in (("vgg11", vgg11, resnet50), ("resnet50", resnet50, vgg11)):
                number = published_numbers.RALP_4[vgg11, model]
                row = f"{model} x 4 under {_label(how)}, others under {_label(other)}"
                cell = partial(Cell, "ralp4", kind=kind, rests_on=rests_on, time_s=1 / rates[model])
                yield cell(row=f"{row}: images/s", column=column, published=number, simulated=rates[model])
                gain = round(number / both[model], 2)
                yield cell(row=f"{row}: gain", column=column, published=gain, simulated=rates[model] / base[model])


def _label(mechanism: str) -> str:
    return "RALP" if mechanism.startswith("ralp") else "parameter servers"


# ---- figures -------------------------------------------------------------------------------------------------------


def figure_2(bandwidth: float) -> Iterator[Cell]:
    """Communication's share of a step with as many servers as workers, each on a machine of its own."""
    for column, bits_s in (("nominal", NOMINAL), ("as fast as seen", SEEN)):
        kind, rests_on = (ASSUMED, COMPUTE) if column == "nominal" else (FITTED, f"{LINKS}, {COMPUTE}")
        for count in (1, 2, 4):
            shares, steps_s = [], []
            for model in published_numbers.RALP_MODELS:
                training = Training(model, f"ps:servers={count}", count)
                seconds = _step_s(training, tuple(range(2 * count)), bits_s * bandwidth)
                steps_s.append(seconds)
                shares.append(1 - training.compute_s / seconds)
                yield Cell(
                    "ralp-figure2", f"{column}: {model}", f"{count} workers, share", None, shares[-1], kind, rests_on,
                    seconds,
                )  # fmt: skip
            mean, number = sum(shares) / len(shares), published_numbers.RALP_FIGURE_2.get(count)
            row = f"{column}: mean of the networks"
            yield Cell("ralp-figure2", row, f"{count} workers, share", number, mean, kind, rests_on, sum(steps_s))


@cache
def _step_s(training: Training, hosts: tuple[int, ...], bits_s: float) -> float:
    return play(papers_network(bits_s), [training.job(hosts)]).outcomes[0].iteration_s


def figure_3(bandwidth: float) -> Iterator[Cell]:
    """How many times as long a step takes beside seven other jobs of its kind."""
    for column, bits_s in (("nominal", NOMINAL), ("as fast as seen", SEEN)):
        kind, rests_on = (ASSUMED, COMPUTE) if column == "nominal" else (FITTED, f"{LINKS}, {COMPUTE}")
        for model in published_numbers.RALP_MODELS:
            single = WORKERS * BATCHES[model] / _alone(model, 1, "ps", bits_s * bandwidth)
            consolidated = 8 * WORKERS * BATCHES[model] / _alone(model, 8, "ps", bits_s * bandwidth)
            number = published_numbers.RALP_FIGURE_3_LENET if model == "lenet" else None
            factor = consolidated / single
            yield Cell("ralp-figure3", model, f"{column} (x)", number, factor, kind, rests_on, consolidated)


def figure_4() -> Iterator[Cell]:
    """How parameters and operations are distributed over the layers."""
    skewed, shares = 0, []
    for model in published_numbers.RALP_MODELS:
        layers = [layer for layer in layers_of(build(model)) if layer.kind != "norm"]
        tail = layers[len(layers) - -(-len(layers) // 4) :]  # a quarter, rounded up
        share = sum(layer.params for layer in tail) / sum(layer.params for layer in layers)
        skewed += share > published_numbers.RALP_FIGURE_4_SHARE
        flops = sum(layer.flops for layer in layers)
        shares.append(sum(layer.flops for layer in layers if layer.kind == "conv") / flops)
        yield Cell("ralp-figure4", model, "parameters in the last quarter", None, share, COUNTED)
        yield Cell("ralp-figure4", model, "operations in convolutions", None, shares[-1], COUNTED)
    row, column = "all", "networks with over 86 % of the parameters there"
    yield Cell("ralp-figure4", row, column, published_numbers.RALP_FIGURE_4_SKEWED, skewed, COUNTED)
    mean = sum(shares) / len(shares)
    yield Cell("ralp-figure4", row, "mean share of convolutions", published_numbers.RALP_FIGURE_4_CONV, mean, COUNTED)


def figure_6() -> Iterator[Cell]:
    """Each layer's parameters, and its outputs for a worker's batch, in MB."""
    for model in published_numbers.RALP_MODELS:
        for layer in layers_of(build(model)):
            outputs = 4e-6 * BATCHES[model] * layer.output
            yield Cell(
                "ralp-figure6", f"{model}: parameters", f"layer {layer.index} (MB)", None, 4e-6 * layer.params, COUNTED
            )
            yield Cell("ralp-figure6", f"{model}: outputs", f"layer {layer.index} (MB)", None, outputs, COUNTED)


def _systems(model: str, gpus: int, classes: int) -> dict[str, tuple[Training, tuple[int, ...]]]:
    """The four systems of figure 7 on so many GPUs, with their machines; a machine has at most four GPUs."""
    half, each = gpus // 2, max(1, gpus // MACHINES)
    turns = tuple(gpu % MACHINES for gpu in range(gpus))
    return {
        "TensorFlow": (Training(model, f"ps:servers={half}", half, classes), turns),
        "Horovod": (Training(model, "ring", gpus, classes), tuple(gpu // each for gpu in range(gpus))),
        "RALP-H": (Training(model, "ralp/ps", half, classes), turns[: half + 1]),
        "RALP-N": (Training(model, "ralp/ps", gpus - 1, classes), turns),
    }


def _throughputs(
    table: str, classes: int, counts: Sequence[int], models: Sequence[str], systems: Sequence[str], bandwidth: float
) -> Iterator[Cell]:
    """Throughput relative to the first of the systems."""
    for column, bits_s, ring_bits_s in (("nominal", NOMINAL, NOMINAL), ("as fast as seen", SEEN, SEEN_RING)):
        kind, rests_on = (ASSUMED, COMPUTE) if column == "nominal" else (FITTED, f"{LINKS}, {COMPUTE}")
        for model in models:
            for gpus in counts:
                base = None
                for system, (training, hosts) in _systems(model, gpus, classes).items():
                    if system not in systems:
                        continue
                    rate = bandwidth * (ring_bits_s if system == "Horovod" else bits_s)
                    seconds = _step_s(training, hosts, rate)
                    images_s = training.images_s(seconds)
                    base = base or images_s
                    row = f"{model}, {column}: {system}"
                    yield Cell(table, row, f"{gpus} GPUs (x)", None, images_s / base, kind, rests_on, seconds)


LITTLE_GAIN = ("googlenet", "inception3", "lenet", "resnet50")

TABLES: dict[str, Table] = {
    "ralp1": without_links(table_1),
    "ralp2": without_links(table_2),
    "ralp3": table_3,
    "ralp4": table_4,
    "ralp-figure2": figure_2,
    "ralp-figure3": figure_3,
    "ralp-figure4": without_links(figure_4),
    "ralp-figure6": without_links(figure_6),
    "ralp-figure7": partial(
        _throughputs, "ralp-figure7", 0, (4, 8, 16), published_numbers.RALP_MODELS,
        ("TensorFlow", "Horovod", "RALP-H", "RALP-N"),
    ),
    "ralp-figure8": partial(
        _throughputs, "ralp-figure8", 0, (4, 8, 16, 32), LITTLE_GAIN, ("Horovod", "RALP-N"),
    ),
    "ralp-figure9": partial(
        _throughputs, "ralp-figure9", IMAGENET_22K, (4, 8, 16), published_numbers.RALP_MODELS,
        ("TensorFlow", "Horovod", "RALP-H", "RALP-N"),
    ),
}  # fmt: skip

NOTES = {
    "ralp3": "The rows with four jobs are one experiment. As fast as seen is 1.76 of 56 Gbit/s, fitted to eight VGG11 jobs "
    "with parameter servers; ResNet-50 beside VGG11 was faster than such links allow.",
    "ralp-figure7": "The paper has RALP-N ahead of Horovod on most networks; the simulator does not.",
    "ralp-figure8": "The paper has RALP-N ahead of Horovod from 16 GPUs on; the simulator does not.",
}
