"""Pipelines, simulated: bubbles and transfers worked by hand, and who sums what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.plan import Plan
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Layer, Parameter, synthesise
from simulation.answers.answer import answer
from simulation.answers.assumptions import of_pipelines
from simulation.answers.setup import Setup
from simulation.errors import SimulationError
from simulation.experiments.scenario import RUNTIME, Scenario
from simulation.models.compute import Compute
from simulation.models.synthetic_trace import model_layers
from simulation.models.workload_source import WorkloadSource, bare, model
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Outcome, Played, play
from simulation.simulator.workload import Tensor, Variation, Workload, of_plan

MS = 1_000_000
FREE = Network(1e18)
GIGABYTE = Network(8e9)  # a megabyte in 1 ms
LAYERS, BATCH = 8, 4


def even_model(layers: int = LAYERS, output: int = 1000, parameters: int = 1000) -> WorkloadSource:
    """Layers that take 1 ms forward and 2 ms backward for a batch of 4."""
    names = [f"fc{number}" for number in range(layers)]
    trace = synthesise(
        [Layer(name, MS, 2 * MS) for name in names], [Parameter(f"{name}/w", 4 * parameters, name) for name in names]
    )
    infos = tuple(
        LayerInfo(number, name, "other", parameters, output, 1, None, (f"{name}/w",))
        for number, name in enumerate(names, start=1)
    )
    return WorkloadSource(trace, infos, BATCH, 0)


def plan_of(name: str, workers: int, subject: WorkloadSource | None = None) -> Plan:
    return (subject or even_model()).plan(choose(name), workers)


def played(name: str, workers: int, network: Network = FREE, subject: WorkloadSource | None = None) -> Played:
    job = Job(of_plan(plan_of(name, workers, subject)), choose(name).mechanism, workers, bare=True)
    return play(network, [job])


def iteration_ms(name: str, workers: int, network: Network = FREE, subject: WorkloadSource | None = None) -> float:
    return played(name, workers, network, subject).outcomes[0].iteration_s * 1e3


# ---- bubbles -------------------------------------------------------------------------------------------------------

WHOLE_MS = 3.0 * LAYERS  # of a worker's batch, which is a share of what a stage computes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 8), (4, 4), (4, 16), (8, 8)])
def test_s_minus_1_microbatches_more_than_without_a_bubble(schedule: str, stages: int, microbatches: int) -> None:
    expected = WHOLE_MS * (microbatches + stages - 1) / microbatches
    assert iteration_ms(f"{schedule}:stages={stages}:microbatches={microbatches}", stages) == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(2, 2, 2), (2, 4, 4), (4, 8, 2)])
def test_chunks_divide_the_bubble(stages: int, microbatches: int, chunks: int) -> None:
    name = f"interleaved:stages={stages}:microbatches={microbatches}:chunks={chunks}"
    expected = WHOLE_MS * (microbatches + (stages - 1) / chunks) / microbatches
    assert iteration_ms(name, stages) == pytest.approx(expected)


@pytest.mark.parametrize("stages", [2, 4])
def test_without_a_pipeline_stages_take_turns(stages: int) -> None:
    assert iteration_ms(f"modelparallel:stages={stages}", stages) == pytest.approx(WHOLE_MS * stages)


def test_recomputing_costs_a_forward_pass() -> None:
    name = "gpipe:stages=4:microbatches=4"
    assert iteration_ms(f"{name}:recompute=yes", 4) == pytest.approx(iteration_ms(name, 4) * 4 / 3)


def test_replicas_take_as_long_as_one_pipeline() -> None:
    name = "1f1b:stages=4:microbatches=8"
    assert iteration_ms(name, 8) == pytest.approx(iteration_ms(name, 4))


# ---- messages ------------------------------------------------------------------------------------------------------


def test_transfers_lengthen_an_iteration_as_worked_by_hand() -> None:
    """Two stages, one micro-batch of 8 examples: each computes 8 ms, then 16 ms; 1 MB goes each way."""
    subject = even_model(output=10**6 // 4 // 8)
    assert iteration_ms("modelparallel:stages=2", 2, GIGABYTE, subject) == pytest.approx(48 + 2, rel=1e-6)
    # With two micro-batches, passes take 4 and 8 ms, and messages 0.5 ms. The last stage computes from 4.5 to 28.5 without
    # a pause. Its last gradient arrives at 29, when the first stage begins its last pass.
    assert iteration_ms("gpipe:stages=2:microbatches=2", 2, GIGABYTE, subject) == pytest.approx(37, rel=1e-6)


def test_links_carry_activations_their_gradients_and_the_stages_sums() -> None:
    """Stage 0 and 1 of two pipelines are workers 0 and 1, and 2 and 3."""
    subject = even_model(output=500, parameters=10**6)
    carried = played("1f1b:stages=2:microbatches=4/ring", 4, GIGABYTE, subject).link_bytes
    activations = 4 * 500 * 2 * BATCH  # of a pipeline's batch
    of_stage = 4 * 10**6 * LAYERS // 2  # a ring of two sends a tensor's bytes once
    for rank in range(4):
        assert carried[f"worker{rank}"] == (activations + of_stage, activations + of_stage)
    without = played("1f1b:stages=2:microbatches=4/ring", 2, GIGABYTE, subject).link_bytes
    assert without["worker0"] == without["worker1"] == (activations, activations)


def test_stages_that_use_the_same_parameter_sum_its_gradient() -> None:
    """The last of 8 layers uses the first one's 1 MB, too: both workers send and receive that much more."""
    subject = even_model(parameters=10**6 // 4)
    last = replace(subject.layers[-1], borrowed=("fc0/w",))
    tied = replace(subject, layers=(*subject.layers[:-1], last))
    name = "modelparallel:stages=2/ring"
    apart, together = (played(name, 2, GIGABYTE, each) for each in (subject, tied))
    for rank in range(2):
        sent, received = apart.link_bytes[f"worker{rank}"]
        assert together.link_bytes[f"worker{rank}"] == (sent + 10**6, received + 10**6)
    later_s = together.outcomes[0].iteration_s - apart.outcomes[0].iteration_s
    assert later_s * 1e3 == pytest.approx(1, rel=0.01)  # both halves, each way at a time
    of_four = of_plan(tied.plan(choose(name), 4), bucket_bytes=10**9).summed
    assert [(each.workers, each.bytes) for each in of_four] == [((0, 1), 4 * 10**6), ((2, 3), 5 * 10**6)]


@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast", "ring+mcast", "tree"])
def test_each_stages_replicas_sum_its_gradients(mechanism: str) -> None:
    plan = plan_of(f"interleaved:stages=2:microbatches=2:chunks=2/{mechanism}", 6)
    assert [group.workers for group in plan.groups] == [(0, 1, 2), (3, 4, 5)]
    assert [group.parameters for group in plan.groups] == [
        tuple(f"fc{number}/w" for number in numbers) for numbers in ((0, 1, 4, 5), (2, 3, 6, 7))
    ]
    workload = of_plan(plan, bucket_bytes=10**9)
    assert [tensor.workers for tensor in workload.summed] == [(0, 1, 2), (3, 4, 5)]
    assert [tensor.bytes for tensor in workload.summed] == [4 * 4 * 1000] * 2
    outcome = play(GIGABYTE, [Job(workload, find(mechanism), 6, bare=True)]).outcomes[0]
    assert all(time > 0 for time in outcome.delivered_ns[1])


@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast", "ring+mcast", "halving-doubling"])
def test_a_group_takes_as_long_as_so_few_workers(mechanism: str) -> None:
    tensor = Tensor("sum", 4 * 10**6, 0, 0, 0)
    alone = Workload((tensor,), np.zeros(1, np.int64), np.zeros((1, 1), np.int64), ((0,),))
    grouped = replace(alone, tensors=(replace(tensor, workers=(1, 4, 5, 7)),))
    few = play(GIGABYTE, [Job(alone, find(mechanism), 4, bare=True)])
    many = play(GIGABYTE, [Job(grouped, find(mechanism), 8, bare=True)])
    assert many.outcomes[0].iteration_s == few.outcomes[0].iteration_s
    for place, rank in enumerate((1, 4, 5, 7)):
        assert many.link_bytes[f"worker{rank}"] == few.link_bytes[f"worker{place}"]
    assert many.link_bytes["worker0"] == (0, 0)


def test_racks() -> None:
    """A leaf sums for the replicas that it has."""
    name = "gpipe:stages=2:microbatches=2/inagg+mcast"
    scenario = Scenario(even_model(parameters=10**6), name, 4, Network(1e10, racks=2))
    carried = scenario.play().link_bytes
    assert carried["leaf1"][0] < carried["worker0"][0]


# ---- cuts ----------------------------------------------------------------------------------------------------------


def test_no_cut_is_within_a_block() -> None:
    residual = {layer.name for layer in model_layers("resnet50") if layer.crossing != 0}
    assert "block1/unit_1/conv3" in residual and "block1/unit_1/conv2" not in residual and "pool1" in residual
    transformer = {layer.name for layer in model_layers("gpt2") if layer.crossing != 0}
    assert {"block1/attention/out", "block1/inner2"} < transformer
    assert not {"tokens", "block1/norm1", "block1/attention/product", "block1/inner1"} & transformer
    branches = {layer.name: layer for layer in model_layers("inception3")}
    ends = [layer for layer in branches.values() if layer.name.startswith("Mixed_5b/") and layer.crossing]
    assert len(ends) == 1 and ends[0].crossing == 35 * 35 * 256 and ends[0].output == 35 * 35 * 32
    assert all(layer.crossing is None for layer in model_layers("vgg16"))
    inverted = {layer.name: layer.crossing for layer in model_layers("mobilenet2")}
    assert inverted["block2/unit_1/depthwise"] is None and inverted["block2/unit_2/depthwise"] == 0


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "inception3", "gpt2"])
def test_stages_have_all_gradients_once(name: str) -> None:
    subject = model(name, Compute(8))
    plan = subject.plan(choose("interleaved:stages=4:microbatches=8:chunks=2/ring"), 4)
    parameters = [parameter for group in plan.groups for parameter in group.parameters]
    if name == "gpt2":  # its head uses the weights of the first stage, and has a copy of them
        assert plan.groups[0].parameters[0] == plan.groups[3].parameters[-1] == parameters.pop() == "tokens/weights"
    assert sorted(parameters) == sorted(p.name for p in subject.trace.parameters if p.trained)
    computes_ns = [plan.blocking[0].compute_ns(f"worker{rank}") for rank in range(4)]
    assert sum(computes_ns) / 1e9 == pytest.approx(4 * subject.trace.compute_s, rel=1e-4)


# ---- cells ---------------------------------------------------------------------------------------------------------


def test_a_pipeline_is_answered_for() -> None:
    subject = even_model()
    cells = [Scenario(subject, name, 4, Network(1e10)) for name in ("ring", "1f1b:stages=4:microbatches=4/ring")]
    found = answer(cells, {})
    ring, pipeline = found.rows
    assert ring.mechanism == "ring" and pipeline.compute_ms == pytest.approx(WHOLE_MS)
    assert pipeline.exposed_ms == pytest.approx(WHOLE_MS * 3 / 4, rel=0.05)
    assert pipeline.limited_by == "computing"
    assert pipeline.low_ms < pipeline.iteration_ms < pipeline.high_ms


def test_assumptions_name_pipelines_where_there_are_any() -> None:
    cells = [Scenario(even_model(), name, 4, FREE) for name in ("ring", "gpipe/ring")]
    assert of_pipelines(cells[:1]) == {}
    assert "a micro-batch takes its share" in of_pipelines(cells)["pipelines"]["value"]


def test_computing_and_stragglers_scale_the_passes() -> None:
    scenario = Scenario(even_model(), "gpipe:stages=2:microbatches=2/ring", 2, FREE, replace(RUNTIME, jitter=0.0))
    setup = Setup.of(scenario)
    assert setup.computing(2).played_s() == pytest.approx(2 * setup.played_s())
    assert setup.computing(2).compute_s == pytest.approx(2 * setup.compute_s)
    # The first stage's passes of a micro-batch take 4 and 8 ms, the straggler's 8 and 16: both are in turn there.
    straggling = replace(scenario, variation=Variation(stragglers={1: 2.0}))
    assert Setup.of(straggling).played_s() * 1e3 == pytest.approx(4 + 2 * 8 + 2 * 16 + 8)


def test_jitter_varies_passes_with_the_seed() -> None:
    def outcome(seed: int) -> Outcome:
        plan = plan_of("gpipe:stages=2:microbatches=2", 2)
        variation = Variation(0.1, seed=seed)
        return play(FREE, [Job(of_plan(plan), find("ring"), 2, bare=True, variation=variation)]).outcomes[0]

    assert outcome(1) == outcome(1) != outcome(2)


def test_impossible_pipelines() -> None:
    with pytest.raises(HostlibError, match="2 layers cannot be cut into 4 stages"):
        plan_of("gpipe:stages=4/ring", 4, even_model(layers=2))
    with pytest.raises(HostlibError, match="cannot be cut into 3 equal micro-batches"):
        plan_of("gpipe:stages=2:microbatches=3/ring", 2)
    with pytest.raises(HostlibError, match="multiple of as many workers, not 6"):
        plan_of("gpipe:stages=4/ring", 6)
    with pytest.raises(HostlibError, match="name a model"):
        plan_of("gpipe/ring", 2, replace(even_model(), layers=()))
    with pytest.raises(SimulationError, match="is a training strategy"):
        bare().plan(choose("gpipe/ring"), 2)
