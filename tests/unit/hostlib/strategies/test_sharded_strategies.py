"""fsdp and zero1: what is gathered when, what an iteration takes in closed form, what is refused, and a unit's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.schedules.contract import Collective
from hostlib.strategies.builtin.fsdp.fsdp_trainer import Unit
from hostlib.strategies.common.sharded_plan import hosts_reduce_scatter
from hostlib.strategies.plan import Plan, WeightGather
from hostlib.strategies.strategy import choose
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.experiments.scenario import Scenario, alone
from simulation.models.workload_source import WorkloadSource
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Outcome, only
from simulation.simulator.workload import in_parts, of_plan

MS = 1_000_000
WORKERS, UNIT = 4, 4_000_000
SHARDS_MS = 24  # three shards of a unit, a quarter each, at 1 Gbit/s: a reduce-scatter or an all-gather by itself
WHOLE_MS = 32


def network_of(layers: int, ms: int = 0) -> Trace:
    """Layers of UNIT bytes each; the last is followed by one without weights."""
    names = [f"l{n}" for n in range(layers)]
    return synthesise(
        [*(Layer(name, ms * MS, ms * MS) for name in names), Layer("softmax", 0, 0)],
        [Parameter(f"{name}/w", UNIT, name) for name in names],
    )


def plan_of(name: str, trace: Trace, workers: int = WORKERS) -> Plan:
    return choose(name).plan(trace, (), workers, 32)


def played(name: str, trace: Trace, iterations: int = 1) -> Outcome:
    mechanism = choose(name).mechanism
    workload = of_plan(plan_of(name, trace))
    network = Network(1e9, latency_ns=0)
    job = Job(workload, mechanism, WORKERS, iterations, bare=True, channels=mechanism.channels)
    return only(network, job)[0]


def iteration_ms(name: str, layers: int, ms: int = 0) -> float:
    return played(name, network_of(layers, ms)).iteration_end_ns[1] / MS


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_weights_are_gathered_one_unit_ahead_in_both_passes() -> None:
    """Steps 0 to 3 are forward passes, the last one of a layer without weights; 4 to 6 are the gradients of l2, l1, l0."""
    plan = plan_of("fsdp/ring", network_of(3))
    assert plan.gathers == (
        WeightGather("l0, forward", ("l0/w",), 0, 0),
        WeightGather("l1, forward", ("l1/w",), 0, 1),
        WeightGather("l2, forward", ("l2/w",), 1, 2),
        WeightGather("l1, backward", ("l1/w",), 4, 5),
        WeightGather("l0, backward", ("l0/w",), 5, 6),
    )
    assert plan.chunks == (("l2/w",), ("l1/w",), ("l0/w",))
    assert plan.summing is Collective.REDUCE_SCATTER


def test_zero1_gathers_all_weights_once() -> None:
    plan = plan_of("zero1/ring", network_of(2))
    assert plan.gathers == (WeightGather("weights", ("l1/w", "l0/w"), 0, 0),)
    workload = of_plan(plan)
    sizes = [(tensor.bytes, tensor.collective) for tensor in workload.tensors]
    scattered = (UNIT, Collective.REDUCE_SCATTER)
    assert sizes == [scattered, scattered, (2 * UNIT, Collective.ALL_GATHER)]
    assert workload.asked[0] == workload.awaited[0] == [2] and not any(workload.asked[1:])


def test_a_plans_bytes_are_scaled_with_those_of_its_gathers() -> None:
    workload = of_plan(plan_of("fsdp/ring", network_of(2)).scaled(0.5))
    assert [tensor.bytes for tensor in workload.tensors] == [UNIT // 2] * 5


def test_parts_of_a_gather_begin_and_are_needed_together() -> None:
    workload = in_parts(of_plan(plan_of("fsdp/ring", network_of(1))), 2, 1000)
    assert workload.gathers == ((2, 0, 0), (3, 0, 0))
    assert {tensor.bytes for tensor in workload.tensors} == {UNIT // 2}


@pytest.mark.parametrize(("mechanism", "parts"), [("ring+mcast", 4), ("inagg+mcast", 1), ("ring", 1)])
def test_chunks_share_links_with_messages_in_what_their_sources_have_slots_for(mechanism: str, parts: int) -> None:
    """Four sources of 64 slots of 1 KiB."""
    source = WorkloadSource(network_of(2), (), 32, 2**20)
    _, job = Scenario(source, f"fsdp/{mechanism}", WORKERS, Network(1e9), shrink=UNIT / 2**20).made()
    gathered = [tensor for tensor in job.workload.tensors if tensor.collective is Collective.ALL_GATHER]
    assert len(gathered) == 3 * parts and len(job.workload.tensors) == len(gathered) + 2


def test_one_worker_has_all_weights() -> None:
    workload = alone(of_plan(plan_of("fsdp/ring", network_of(2))))
    assert [(tensor.bytes, tensor.collective) for tensor in workload.tensors] == [(UNIT, None)] * 2
    assert not workload.gathers


# ---- closed forms: one switch, 1 Gbit/s, no latency ------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_without_computing_a_ring_is_as_long_as_its_bytes(layers: int) -> None:
    """Every unit is gathered before its forward pass and scattered, and all but the last gathered again."""
    assert iteration_ms("fsdp/ring", layers) == pytest.approx((3 * layers - 1) * SHARDS_MS)
    assert iteration_ms("zero1/ring", layers) == pytest.approx(2 * layers * SHARDS_MS)
    assert iteration_ms("zero1/ring", layers) == pytest.approx(iteration_ms("bsp/ring", layers))


@pytest.mark.parametrize("layers", [2, 3])
def test_in_the_fabric_a_gather_and_a_scatter_at_a_time_are_one_tensor_each_way(layers: int) -> None:
    """Alone each is as long as a ring's; of the backward pass all gathers run beside a scatter, but the last scatter
    alone."""
    both = (layers - 1) * WHOLE_MS
    assert iteration_ms("fsdp/inagg+mcast", layers) == pytest.approx(layers * SHARDS_MS + both + SHARDS_MS)


def test_computing_hides_all_but_the_first_gather_and_the_last_scatter() -> None:
    for name in ("fsdp/ring", "fsdp/inagg+mcast"):
        outcome = played(name, network_of(3, ms=100))
        assert outcome.forward_end_ns[1] == pytest.approx([(SHARDS_MS + 300) * MS] * WORKERS)
        assert outcome.backward_end_ns[1] == pytest.approx([(SHARDS_MS + 600) * MS] * WORKERS)
        assert outcome.iteration_end_ns[1] == pytest.approx((SHARDS_MS + 600 + SHARDS_MS) * MS)


def test_iterations_are_alike() -> None:
    ends = played("fsdp/ring", network_of(2, ms=10), iterations=3).iteration_end_ns
    assert ends[3] - ends[2] == pytest.approx(ends[2] - ends[1]) == pytest.approx(ends[1])


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        ("tree", "it has no all-gather of the weights"),
        ("inagg", "it has no all-gather of the weights"),
        ("inagg+mcast:via_server", "it has no all-gather of the weights"),
        ("ps", "its servers serve all-reduces only"),
        ("mcast", "its servers serve all-reduces only"),
    ],
)
def test_mechanisms_that_cannot_gather_are_refused(strategy: str, mechanism: str, why: str) -> None:
    with pytest.raises(HostlibError) as refused:
        choose(f"{strategy}/{mechanism}")
    legal = "gloo, halving-doubling, inagg+mcast, ring, ring+mcast"
    assert str(refused.value) == f"{strategy} does not go with {mechanism}: {why}; legal are {legal}"


def test_a_rank_takes_its_part_of_an_all_reduce_where_hosts_cannot_scatter() -> None:
    assert [hosts_reduce_scatter(find(name)) for name in ("ring", "gloo", "inagg+mcast")] == [True] * 3
    assert not hosts_reduce_scatter(find("tree"))


# ---- memory ----------------------------------------------------------------------------------------------------------


class SecondOfTwo:
    """A channel of rank 1 of 2; the other rank's shard is zeros."""

    rank, world_size = 1, 2

    def all_gather(self, whole: Tensor, shard: Tensor) -> torch.futures.Future[Tensor]:
        whole.zero_()
        whole.narrow(0, shard.numel(), shard.numel()).copy_(shard.detach())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(whole)
        return future


def test_a_unit_has_memory_for_its_shard_only_until_it_is_gathered() -> None:
    weight, bias = nn.Parameter(torch.arange(6.0).view(2, 3)), nn.Parameter(torch.tensor([7.0]))
    channel: Any = SecondOfTwo()
    unit = Unit([weight, bias], channel)
    assert weight.untyped_storage().nbytes() == 0
    assert unit.flat.shard.tolist() == [4, 5, 7, 0]  # seven values and one of padding, in halves
    for _ in range(2):
        unit.wait()
        assert weight.tolist() == [[0, 0, 0], [0, 4, 5]] and bias.tolist() == [7]
        unit.free()
        assert bias.untyped_storage().nbytes() == 0


def test_missing_gradients_are_zeros() -> None:
    one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))
    channel: Any = SecondOfTwo()
    unit = Unit([one, other], channel)
    unit.wait()
    one.grad = torch.tensor([3.0, 4.0])
    assert unit.flat.gradients().tolist() == [3, 4, 0, 0]
    assert one.grad is None
