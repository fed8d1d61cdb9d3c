"""cgdp's plan: its chunks by a mechanism, and added by the host as the paper's cost model has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.errors import EmulationError
from emulation.experiments.runner import ExperimentRun, RunOptions
from hostlib.errors import HostlibError
from hostlib.strategies.builtin.cgdp.cost_model import costs_of, partition, predict, search
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Event, Layer, Parameter, Trace, synthesise
from simulation.cli import main
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import read_experiment
from simulation.models.synthetic_trace import model_layers, model_trace
from simulation.models.workload_source import WorkloadSource
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Outcome, only
from simulation.simulator.workload import Variation, of_plan
from tests.unit.simulation.simulated import simulated_s

MS, KB = 1_000_000, 1000
RATES = {"sync": 50, "accumulation": 1, "broadcast": 4}  # microseconds, GB/s: a MB takes 1 ms there and 0.25 ms back
RATE_OPTIONS = "".join(f":{name}={value}" for name, value in RATES.items())


def network_of(*layers: tuple[int, int]) -> Trace:
    """Layers of (milliseconds backwards, kilobytes), in forward order; those of no bytes are not trained."""
    return synthesise(
        [Layer(f"l{n}", MS, ms * MS) for n, (ms, _) in enumerate(layers, 1)],
        [Parameter(f"l{n}/w", size * KB, f"l{n}") for n, (_, size) in enumerate(layers, 1) if size],
    )


def played(trace: Trace, name: str, workers: int = 4, variation: Variation | None = None) -> Outcome:
    choice = choose(name)
    plan = choice.plan(trace, (), workers, 32)
    return only(
        Network(1e9), Job(of_plan(plan), choice.mechanism, workers, bare=True, variation=variation or Variation())
    )[0]


# ---- the host adds -------------------------------------------------------------------------------------------------


def test_chunks_are_added_while_the_backward_pass_goes_on() -> None:
    """Three layers forward, 3 ms. Layers 3 and 2 are there after 4 ms, handed over in 0.05; 3 MB take 3.75 ms, until 10.8.
    Layer 1, of 1 MB, is handed over at 3 + 6 + 0.1 and done when 1.25 ms have passed since the host was through."""
    outcome = played(network_of((2, 1000), (2, 2000), (2, 1000)), f"cgdp:chunk=2{RATE_OPTIONS}")
    assert outcome.backward_end_ns[1] == [9.1 * MS] * 4
    assert outcome.delivered_ns[1] == [(3 + 4 + 0.05 + 3.75) * MS, (10.8 + 1.25) * MS]


layers_of_networks = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40_000)), min_size=1, max_size=12).filter(
    lambda layers: any(size for _, size in layers)
)


@given(layers_of_networks, st.integers(1, 13), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_simulator_takes_what_the_cost_model_says(layers: list[tuple[int, int]], size: int, workers: int) -> None:
    """Equation (1) to the nanosecond, where no chunk comes while the host is at another; else, each waits for its turn."""
    trace = network_of(*layers)
    costs = costs_of(trace, RATES["sync"] / 1e6, RATES["accumulation"] * 1e9, RATES["broadcast"] * 1e9)
    chunks = partition(len(costs), size)
    paper, in_turn = predict(costs, chunks), predict(costs, chunks, in_turn=True)
    outcome = played(trace, f"cgdp:chunk={size}{RATE_OPTIONS}", workers)
    forward_ns = outcome.forward_end_ns[1][0]
    nanoseconds = len(chunks) + 1
    assert outcome.delivered_ns[1] == pytest.approx([forward_ns + s * 1e9 for s in in_turn.done], abs=nanoseconds)
    assert outcome.iteration_end_ns[1] == pytest.approx(forward_ns + in_turn.total * 1e9, abs=nanoseconds)
    if in_turn.done == paper.done:
        assert outcome.iteration_end_ns[1] == pytest.approx(forward_ns + paper.total * 1e9, abs=nanoseconds)
    assert outcome.iteration_end_ns[1] > forward_ns + paper.total * 1e9 - nanoseconds


def test_a_slow_worker_is_waited_for() -> None:
    trace = network_of((2, 1000), (2, 1000))
    together = played(trace, f"cgdp:chunk=1{RATE_OPTIONS}").iteration_end_ns[1]
    slow = played(trace, f"cgdp:chunk=1{RATE_OPTIONS}", variation=Variation(stragglers={2: 3.0})).iteration_end_ns[1]
    assert together == (2 + 4 + 0.1 + 1.25) * MS
    assert slow == pytest.approx((3 * (2 + 4 + 0.1) + 1.25) * MS)


def test_without_a_size_the_search_finds_one() -> None:
    """Of the cost model's times, with the step and range that were asked for."""
    trace = network_of(*[(1, 200)] * 40)
    costs = costs_of(trace, 800e-6, 4e9, 10e9)
    lapses = {size: predict(costs, partition(40, size), in_turn=True).total for size in range(1, 41)}
    for step, reach in ((10, 5), (2, 3)):
        best = search(lapses, step, reach, 10, 40).best
        assert best > 1
        (found, expected) = (
            choose(f"cgdp:{option}:sync=800").plan(trace, (), 4, 32)
            for option in (f"step={step}:range={reach}", f"chunk={best}")
        )
        assert found == expected


# ---- a mechanism sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["ring", "inagg+mcast", "ps"])
def test_a_mechanism_sums_the_same_chunks(mechanism: str) -> None:
    trace = network_of((1, 100), (1, 0), (1, 200), (1, 300), (1, 400))
    choice = choose(f"cgdp:chunk=2{RATE_OPTIONS}/{mechanism}")
    workload = of_plan(choice.plan(trace, (), 4, 32), bucket_bytes=10**9)
    assert [tensor.bytes for tensor in workload.tensors] == [700 * KB, 200 * KB, 100 * KB]
    assert workload.released == ((), (0,), (1,), (2,))
    assert workload.backward_ns.tolist() == [[MS, MS + 50_000, MS + 50_000, 2 * MS + 50_000]]
    job = Job(workload, choice.mechanism, 4, bare=True)
    wfbp = Job(of_plan(choose(mechanism).plan(trace, (), 4, 32)), choice.mechanism, 4, bare=True)
    assert only(Network(1e9), job)[1].link_bytes == only(Network(1e9), wfbp)[1].link_bytes


def test_a_normalisation_belongs_to_its_layer() -> None:
    """ResNet-152's chunks are those of `hostlib cgdp chunks resnet152`: of 156 layers, four of which are shortcuts'."""
    trace, layers = model_trace("resnet152"), model_layers("resnet152")
    plan = choose("cgdp:chunk=9/ring").plan(trace, layers, 4, 32)
    count = sum(layer.params > 0 for layer in layers)
    assert len(plan.chunks) == len(partition(count, 9))
    assert sorted(name for chunk in plan.chunks for name in chunk) == sorted(
        p.name for p in trace.parameters if p.trained
    )
    assert len(layers[1].members) < len(plan.chunks[0])


def test_servers_may_distribute_more_than_is_trained() -> None:
    """A recorded trace: moving averages are distributed, and one variable's gradient is never sent."""
    trace = network_of((1, 100), (1, 200))
    averages = Parameter("l1/average", 4, "l1", trained=False)
    unused = Parameter("l2/unused", 4, "l2")
    distributed = Event(0, averages.name, 4, "server0", "worker0")
    trace = Trace(trace.layers, (*trace.parameters, averages, unused), (*trace.events, distributed))
    plan = choose("cgdp:chunk=1/ring").plan(trace, (), 4, 32)
    assert plan.chunks == (("l2/w",), ("l1/w",))
    assert plan.trace.distribution == trace.distribution
    assert [event.time_ns for event in plan.trace.aggregation("worker0")] == [10_000, MS + 20_000]


def test_a_workload_keeps_what_is_in_no_chunk() -> None:
    trace = network_of((1, 100), (1, 200), (1, 300))
    plan = choose("bsp/ring").plan(trace, (), 4, 32)
    some = type(plan)(plan.trace, chunks=(("l3/w", "l1/w"),))
    workload = of_plan(some)
    assert [(t.name, t.bytes) for t in workload.tensors] == [("bucket0", 400 * KB), ("l2/w", 200 * KB)]
    assert workload.released == ((), (1,), (0,))


# ---- where users look ----------------------------------------------------------------------------------------------


def simulate(*words: str) -> dict[str, dict[str, float]]:
    done = CliRunner().invoke(main, ["run", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    printed: dict[str, dict[str, float]] = json.loads(done.output)
    return printed


def test_the_command_compares_host_and_ring() -> None:
    printed = simulate(
        "--model", "alexnet", "--mechanism", "cgdp", "--mechanism", "cgdp:chunk=2/ring", "--mechanism", "ring"
    )
    assert 0 < printed["cgdp"]["iteration_s"] < printed["cgdp:chunk=2/ring"]["iteration_s"]
    alone = WorkloadSource(model_trace("alexnet"), model_layers("alexnet"), 32, 0)
    assert (
        printed["cgdp"]["iteration_s"] > sum(layer.forward_ns + layer.backward_ns for layer in alone.trace.layers) / 1e9
    )


def test_an_experiment_has_it(tmp_path: Path) -> None:
    path = tmp_path / "chunks.toml"
    path.write_text(
        '[cells]\nmodels = ["lenet"]\nmechanisms = ["cgdp:chunk=2/ring", "cgdp/shm", "wfbp/shm"]\nworkers = [2]\n'
    )
    experiment = read_experiment(path)
    by_ring, by_host, other = (simulated_s(experiment, cell) for cell in experiment.cells)
    assert by_ring and by_host and other is None
    chunks = choose("cgdp:chunk=2/ring").plan(model_trace("lenet"), model_layers("lenet"), 2, 32).chunks
    assert len(experiment.workload(experiment.cells[0]).tensors) == len(chunks)
    message = (
        r"^cgdp/shm is for workers of one host, and here each has one of its own: leave it out, or name a mechanism"
    )
    with pytest.raises(EmulationError, match=message):
        ExperimentRun(experiment, RunOptions(tmp_path / "out", only="cgdp_shm"), lambda row: None)


def test_what_cannot_be_is_said_in_a_line() -> None:
    with pytest.raises(
        HostlibError, match=r"^cgdp:accumulation and cgdp:broadcast must be above 0, and cgdp:sync at least 0"
    ):
        choose("cgdp:accumulation=0")
    with pytest.raises(SimulationError, match=r"^shm is a sum in shared memory and has no schedule; legal are"):
        played(network_of((1, 100)), "bsp/shm")
