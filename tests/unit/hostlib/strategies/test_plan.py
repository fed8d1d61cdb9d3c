"""Plans: what strategies make of a trace, proved, counted against the papers' formulas, and played on paper."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from pathlib import Path

import pytest

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import find
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.checker import Execution
from hostlib.schedules.schedule import Receive, Send, server, worker
from hostlib.schedules.sharding import PAIR_BYTES
from hostlib.strategies.builtin.poseidon.store.partition import make_pairs
from hostlib.strategies.builtin.poseidon.traffic import Synchronisation, per_node
from hostlib.strategies.common.sync_cost import InformationBook, adam_cost, ps_cost, sfb_cost
from hostlib.strategies.plan import (
    Exchange,
    GradientExchange,
    Plan,
    by_server,
    everybody_to_everybody,
    head,
    sync_exchange,
    sync_exchange_of_all,
)
from hostlib.strategies.strategy import Choice, choose, registered_strategies
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise, write
from simulation.errors import SimulationError
from simulation.experiments.experiment_file import ExperimentError, read_experiment
from simulation.models.synthetic_trace import model_layers, model_trace
from simulation.models.workload_source import WorkloadSource, bare, recorded
from simulation.simulator.network import Network
from simulation.simulator.play import Job, only, play
from simulation.simulator.workload import Workload, of_plan, of_trace

MS = 1_000_000
MEGABYTE = 10**6
GIGABIT = Network(1e9)  # a megabyte in 8 ms
NODES, BATCH = 8, 32


def workload_of(subject: WorkloadSource, choice: Choice, workers: int) -> Workload:
    """A strategy's messages, each gradient by itself."""
    return of_plan(subject.plan(choice, workers))


def run(exchange: Exchange) -> Execution:
    """An exchange, symbolically, to its end; every message is received."""
    execution = Execution(exchange.schedule)
    todo = {node: deque(operations) for node, operations in exchange.schedule.nodes.items()}
    while execution.moved:
        execution.moved = False
        for node, operations in todo.items():
            while operations and execution.step(node, operations[0]):
                operations.popleft()
                execution.moved = True
    assert not any(todo.values()) and not any(execution.wires.values())
    return execution


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("by_switch", [False, True])
def test_everybody_ends_with_everybodys_piece(workers: int, by_switch: bool) -> None:
    values = run(everybody_to_everybody("layer", workers, 100, by_switch)).values
    for rank in range(workers):
        assert [values[worker(rank), piece] for piece in range(workers)] == [Counter({p: 1}) for p in range(workers)]


@pytest.mark.parametrize("owner", [server(0), worker(1)])
def test_a_server_has_all_pieces_before_it_answers(owner: str) -> None:
    exchange = by_server("layer", 4, owner, 100, 1000)
    values = run(exchange).values
    assert [values[owner, rank] for rank in range(4)] == [Counter({rank: 1}) for rank in range(4)]
    assert all(values[worker(rank), 4] == values[owner, 4] for rank in range(4))
    mine = exchange.schedule.nodes[owner]
    last, first = (next(i for i, op in order if isinstance(op, kind)) for order, kind in (
        (reversed(list(enumerate(mine))), Receive), (enumerate(mine), Send)))  # fmt: skip
    assert last < first
    assert exchange.sizes == (100, 100, 100, 100, 1000)


@pytest.mark.parametrize(
    "exchange", [sync_exchange("fc", 3, 1, server(0), 64, MS), sync_exchange_of_all("fc", 3, server(0), 64, MS)]
)
def test_a_worker_gets_back_what_it_sent_to_be_worked_on(exchange: Exchange) -> None:
    values = run(exchange).values
    for piece in range(exchange.schedule.pieces):
        rank = 1 if exchange.schedule.pieces == 1 else piece
        assert values[worker(rank), piece] == values[server(0), piece] == Counter({rank: 1})


# ---- bytes ---------------------------------------------------------------------------------------------------------


def connected_model(*widths: int) -> WorkloadSource:
    """Fully connected layers one after the other, each with a bias."""
    shapes = [(f"fc{i}", n, m) for i, (n, m) in enumerate(pairwise(widths), start=1)]
    trace = synthesise(
        [Layer(name, MS, MS) for name, _, _ in shapes],
        [
            p
            for name, n, m in shapes
            for p in (Parameter(f"{name}/w", 4 * n * m, name), Parameter(f"{name}/b", 4 * m, name))
        ],
    )
    layers = tuple(
        LayerInfo(i, name, "fc", n * m + m, m, 2 * n * m, (m, n), (f"{name}/w", f"{name}/b"))
        for i, (name, n, m) in enumerate(shapes, start=1)
    )
    return WorkloadSource(trace, layers, BATCH, 0)


VGG_LIKE = connected_model(25088, 4096, 4096, 1000)  # VGG19's fully connected layers


def link_bytes(subject: WorkloadSource, name: str, workers: int = NODES) -> dict[str, tuple[int, int]]:
    choice = choose(name)
    job = Job(workload_of(subject, choice, workers), choice.mechanism, workers, bare=True)
    return play(Network(1e10), [job]).link_bytes


@pytest.mark.parametrize("scheme", ["ps", "sfb", "adam", "hybcomm", "onebit"])
@pytest.mark.parametrize("colocated", [True, False])
def test_links_carry_what_poseidons_formulas_say(scheme: Synchronisation, colocated: bool) -> None:
    """VGG19's layers on eight nodes, as in figure 10."""
    ps = f"ps:servers={NODES}:assign=even" + (":colocated" if colocated else "")
    name = {"ps": ps, "adam": f"adam:servers={NODES}/{ps}"}.get(scheme, f"{scheme}/{ps}")
    carried = link_bytes(VGG_LIKE, name)
    expected = per_node(InformationBook(VGG_LIKE.layers, NODES, NODES, BATCH), scheme, colocated)
    for node, traffic in expected.items():
        sent, received = carried.get(node, (0, 0))
        assert sent == pytest.approx(traffic.sent, rel=1e-5, abs=64), node
        assert received == pytest.approx(traffic.received, rel=1e-5, abs=64), node


def test_table_1_is_what_one_layer_costs() -> None:
    """M = N = 4096, K = 32, P1 = P2 = 8: parameters, both ways together; our servers send the bias as well."""
    one = connected_model(4096, 4096)
    elements, bias = 4096 * 4096, 4096

    def both(name: str, node: str) -> float:
        return sum(link_bytes(one, name)[node]) / 4

    even = f"ps:servers={NODES}:assign=even"
    assert both("sfb/ring", "worker3") == sfb_cost((4096, 4096), BATCH, NODES).worker == 3_670_016
    assert both(f"{even}:colocated", "worker3") == pytest.approx(ps_cost(elements + bias, NODES, NODES).both)
    assert both(f"adam/{even}", "server0") == adam_cost((4096, 4096), BATCH, NODES).server + NODES * bias
    assert both(f"adam/{even}", "worker3") == adam_cost((4096, 4096), BATCH, NODES).worker + bias
    colocated = f"adam:servers={NODES}/{even}:colocated"
    assert both(colocated, "worker0") == adam_cost((4096, 4096), BATCH, NODES).both + (NODES - 1) * bias


@pytest.mark.parametrize("batch", [BATCH, 512, 4096])
@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("shards", [1, 3, NODES])
def test_poseidons_store_carries_what_its_formulas_say(shards: int, colocated: bool, batch: int) -> None:
    """Of larger batches fewer layers go as factors. Formulas have even parts of each layer on every shard; pairs are dealt
    out, so that one may have a pair, or the larger part of one, more than another of each layer."""
    subject = WorkloadSource(VGG_LIKE.trace, VGG_LIKE.layers, batch, 0)
    carried = link_bytes(subject, f"poseidon:servers={shards}" + ":colocated" * colocated)
    expected = per_node(InformationBook(VGG_LIKE.layers, NODES, shards, batch), "hybcomm", colocated)
    uneven = 0 if shards == 1 else 3 * NODES * PAIR_BYTES
    for node, traffic in expected.items():
        sent, received = carried.get(node, (0, 0))
        exact = shards == 1 or (node.startswith("worker") and not colocated)
        assert sent == pytest.approx(traffic.sent, abs=1 if exact else uneven), node
        assert received == pytest.approx(traffic.received, abs=1 if exact else uneven), node
    for way in (0, 1):
        total = sum((each.sent, each.received)[way] for each in expected.values())
        assert sum(carried[node][way] for node in expected if node in carried) == pytest.approx(total, abs=64)


def test_poseidons_pairs_are_the_stores() -> None:
    """With stragglers dropped, everything is the store's: pairs go on from layer to layer, in backward order."""
    choice = choose("poseidon:servers=3:drop=1")
    plan = choice.plan(VGG_LIKE.trace, VGG_LIKE.layers, NODES, BATCH)
    layers = list(reversed(VGG_LIKE.layers))
    expected = make_pairs([layer.params for layer in layers], 3)
    assert [each.parameters for each in plan.carried] == [layer.members for layer in layers]
    for bucket, each in enumerate(plan.carried):
        mine = [pair for pair in expected if pair.bucket == bucket]
        assert each.exchange.sizes == tuple(4 * (pair.end - pair.start) for pair in mine)
        assert max(each.exchange.sizes) <= PAIR_BYTES
        sends = [op for op in each.exchange.schedule.nodes[worker(5)] if isinstance(op, Send)]
        assert {op.piece: op.peer for op in sends} == {n: server(pair.shard) for n, pair in enumerate(mine)}
    sums = run(plan.carried[0].exchange).values
    assert all(sums[worker(r), 0] == Counter(range(NODES)) for r in range(NODES))


def test_poseidon_takes_what_its_shards_links_take() -> None:
    """As with parameter servers of its pairs: VGG's convolutions would be summed likewise."""
    subject = WorkloadSource(VGG_LIKE.trace, VGG_LIKE.layers, 4096, 0)
    for where in ("", ":colocated"):
        poseidon, ps = (
            play(
                Network(1e10),
                [Job(workload_of(subject, choose(name), NODES), choose(name).mechanism, NODES, bare=True)],
            )
            for name in (f"poseidon:servers=4:drop=1{where}", f"ps:servers=4:assign=pairs{where}")
        )
        assert poseidon.outcomes[0].iteration_s == pytest.approx(ps.outcomes[0].iteration_s, rel=0.05)


def test_adam_is_unbalanced_and_hybcomm_is_not() -> None:
    """Figure 10."""

    def spread(name: str) -> float:
        loads = [sum(link) for link in link_bytes(VGG_LIKE, name).values()]
        return max(loads) / min(loads)

    colocated = f"ps:servers={NODES}:assign=even:colocated"
    assert spread(f"adam:servers={NODES}/{colocated}") > 5
    assert spread(f"hybcomm/{colocated}") < 1.01


def test_hybcomm_is_the_mechanism_where_factors_are_more() -> None:
    """Of a batch of 4096 the factors of a 4096 x 4096 layer are more than its matrix."""
    one = connected_model(4096, 4096)
    large = WorkloadSource(one.trace, one.layers, 4096, 0)
    assert link_bytes(large, "hybcomm/ring") == link_bytes(large, "ring")
    assert link_bytes(one, "hybcomm/ring") == link_bytes(one, "sfb/ring") != link_bytes(one, "ring")


# ---- time ----------------------------------------------------------------------------------------------------------


def iteration_ms(plan: Plan, mechanism: str, workers: int, bare: bool = True, iterations: int = 1) -> float:
    job = Job(of_plan(plan), find(mechanism), workers, iterations=iterations, bare=bare)
    return only(GIGABIT, job)[0].iteration_end_ns[-1] / MS


def two_layers() -> Trace:
    """1 ms and 2 ms each way; 0.5 MB and 4 MB."""
    return synthesise(
        [Layer("conv", MS, MS), Layer("fc", 2 * MS, 2 * MS)],
        [Parameter("conv/w", MEGABYTE // 2, "conv"), Parameter("fc/w", 4 * MEGABYTE, "fc")],
    )


def test_a_server_works_on_one_batch_at_a_time() -> None:
    """Both workers' megabytes leave at 1 ms, and are there at 9 and 17 ms; of 4 ms of work each, the second's begins when
    it has come. Backwards they are at the workers at 21 and 29 ms. The head's last gradient is there at 30 ms, and summed
    4 ms later."""
    trace = two_layers()
    plan = Plan(
        head(trace, "conv"), blocking=tuple(sync_exchange("fc", 2, r, server(0), MEGABYTE, 4 * MS) for r in range(2))
    )
    outcome = only(GIGABIT, Job(of_plan(plan), find("inagg+mcast"), 2, bare=True))[0]
    assert outcome.forward_end_ns[1] == [1 * MS, 1 * MS]
    assert outcome.backward_end_ns[1] == [22 * MS, 30 * MS]
    assert outcome.iteration_end_ns[1] == 34 * MS


def test_a_queue_at_the_server_is_waited_for() -> None:
    """As above, but for work of 20 ms: the second's begins at 29 ms, is done at 49 and back at 57 ms."""
    plan = Plan(
        head(two_layers(), "conv"),
        blocking=tuple(sync_exchange("fc", 2, r, server(0), MEGABYTE, 20 * MS) for r in range(2)),
    )
    assert iteration_ms(plan, "inagg+mcast", 2) == 57 + 1 + 4


def test_all_batches_at_once_wait_for_the_last() -> None:
    """There at 17 ms, done at 25; the second has its gradients 16 ms later, then 1 ms and 4 ms."""
    plan = Plan(head(two_layers(), "conv"), blocking=(sync_exchange_of_all("fc", 2, server(0), MEGABYTE, 8 * MS),))
    assert iteration_ms(plan, "inagg+mcast", 2) == 25 + 16 + 1 + 4


def test_uploads_share_the_link_of_the_heads_server() -> None:
    """With a server of its own, the head's sums take 2 x 4 ms there and 2 x 4 ms back. The first worker's gradients (22
    to 26 ms) are there before the second's (30 to 34 ms), and both have the sum at 42 ms. Where an iteration begins
    with parameters, they come at 4 and 8 ms, and uploads begin at 5 and 9 ms.
    """
    plan = Plan(
        head(two_layers(), "conv"),
        blocking=tuple(sync_exchange("fc", 2, r, server(0), MEGABYTE, 4 * MS) for r in range(2)),
    )
    assert iteration_ms(plan, "ps", 2) == 42
    # At the server at 13 and 21 ms; worked on until 17 and 25 ms; back at 25 and 33 ms.
    assert iteration_ms(plan, "ps", 2, bare=False) == 33 + 1 + 4
    assert iteration_ms(plan, "ps", 2, bare=False, iterations=2) == 2 * 38


def test_factors_leave_when_their_layer_is_done() -> None:
    """Ready at 5 ms (3 ms forward, 2 ms backward); three others' megabytes take 24 ms; the conv's sum is hidden behind."""
    plan = Plan(two_layers(), (GradientExchange(("fc/w",), everybody_to_everybody("fc", 4, MEGABYTE)),))
    assert iteration_ms(plan, "inagg+mcast", 4) == pytest.approx(5 + 24 + 4)
    alone = Plan(two_layers(), (GradientExchange(("fc/w", "conv/w"), everybody_to_everybody("both", 4, MEGABYTE)),))
    assert iteration_ms(alone, "inagg+mcast", 4) == 6 + 24


def test_by_the_switch_a_piece_leaves_once() -> None:
    """1 MB up, 3 MB down."""
    plan = Plan(
        two_layers(), (GradientExchange(("fc/w", "conv/w"), everybody_to_everybody("fc", 4, MEGABYTE, by_switch=True)),)
    )
    outcome, played = only(GIGABIT, Job(of_plan(plan), find("ring"), 4, bare=True))
    assert 6 + 24 <= outcome.iteration_end_ns[1] / MS <= 6 + 32
    assert played.link_bytes["worker0"] == (MEGABYTE, 3 * MEGABYTE)


def test_multicast_saves_what_is_sent_but_not_what_is_received() -> None:
    by_peers, by_switch = link_bytes(VGG_LIKE, "sfb/ring"), link_bytes(VGG_LIKE, "sfb:multicast/ring")
    for node, (sent, received) in by_peers.items():
        assert by_switch[node] == (sent / (NODES - 1), received)


def test_an_owner_gets_factors_and_gives_matrices() -> None:
    """4 x 2 ms, then 4 x 8 ms."""
    plan = Plan(
        two_layers(), (GradientExchange(("fc/w", "conv/w"), by_server("fc", 4, server(0), MEGABYTE // 4, MEGABYTE)),)
    )
    assert iteration_ms(plan, "ring", 4) == 6 + 8 + 32


def test_an_iteration_with_servers_ends_with_what_goes_past_them() -> None:
    """The sum of the conv's 0.5 MB is at the server long before all factors are everywhere."""
    plan = Plan(two_layers(), (GradientExchange(("fc/w",), everybody_to_everybody("fc", 4, 10 * MEGABYTE)),))
    assert iteration_ms(plan, "ps", 4, bare=False) > 240


def test_bsp_sends_everything_when_the_backward_pass_is_over() -> None:
    plan = choose("bsp/inagg+mcast").plan(two_layers(), (), 4, BATCH)
    workload = of_plan(plan)
    assert [tensor.bytes for tensor in workload.tensors] == [4_500_000]
    assert workload.released == ((), (0,))
    assert iteration_ms(plan, "inagg+mcast", 4) == 6 + 36


def test_several_jobs_share_the_ways_between_racks() -> None:
    """A rack's way has a host's bandwidth, for one job's two workers there, or for two jobs'."""
    choice = choose("sfb/ring")
    job = Job(workload_of(VGG_LIKE, choice, 4), choice.mechanism, 4, bare=True)
    alone, two = (
        play(Network(1e9, racks=2, oversubscription=2 * n), [job] * n, apart=True).outcomes[0].iteration_s
        for n in (1, 2)
    )
    assert 1.5 * alone < two < 2.2 * alone


# ---- what models and strategies there are --------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["vgg19", "resnet50", "inception3", "alexnet"])
def test_a_models_layers_have_all_that_is_sent(model: str) -> None:
    trace, layers = model_trace(model), model_layers(model)
    assert sorted(name for layer in layers for name in layer.members) == sorted(
        p.name for p in trace.parameters if p.trained
    )
    assert 4 * sum(layer.params for layer in layers) == trace.bytes
    assert [layer.index for layer in layers] == list(range(1, len(layers) + 1))
    for layer in layers:
        assert (layer.matrix is not None) == (layer.kind == "fc")
        if layer.matrix is not None:
            assert layer.params == layer.matrix[0] * layer.matrix[1] + layer.matrix[0]


# An interleaved pipeline needs more layers than this model has.
@pytest.mark.parametrize("name", [name for name in registered_strategies() if name != "interleaved"])
def test_every_strategy_is_played_with_its_own_mechanism(name: str) -> None:
    choice = choose(name if name != "wfbp" else "wfbp/ring")
    job = Job(workload_of(VGG_LIKE, choice, 4), choice.mechanism, 4, bare=True)
    outcome = only(GIGABIT, job)[0]
    assert outcome.iteration_end_ns[1] > max(outcome.backward_end_ns[1]) >= 2 * MS


def test_wfbp_is_what_a_trace_alone_says() -> None:
    trace = model_trace("alexnet")
    made, plain = workload_of(WorkloadSource(trace, (), 32, 0), choose("ring"), 4), of_trace(trace)
    assert (made.tensors, made.released, made.errands) == (plain.tensors, plain.released, ())
    assert (made.forward_ns == plain.forward_ns).all() and (made.backward_ns == plain.backward_ns).all()


def test_ralp_leaves_the_tail_at_the_heads_server() -> None:
    """VGG19 is cut behind its last pool: 25,088 values of each of 32 images, and 16 convolutions."""
    subject, choice = (
        WorkloadSource(model_trace("vgg19", tflops=10), model_layers("vgg19"), BATCH, 0),
        choose("ralp/ps"),
    )
    plan = choice.plan(subject.trace, subject.layers, 4, BATCH)
    convolutions = 4 * sum(layer.params for layer in subject.layers if layer.kind == "conv")
    activations = 4 * BATCH * 25_088
    assert [each.name for each in plan.trace.layers][-1] == "pool5" and plan.trace.bytes == convolutions
    assert [each.sizes for each in plan.blocking] == [(activations,)] * 4
    assert choice.hosts == 1 and all(server(0) in each.schedule.nodes for each in plan.blocking)
    both = convolutions + activations
    assert link_bytes(subject, "ralp/ps", 4) == {
        **{worker(rank): (both, both) for rank in range(4)},
        server(0): (4 * both, 4 * both),
    }


def test_ralp_cuts_nothing_that_is_not_skewed() -> None:
    subject = WorkloadSource(model_trace("vgg19"), model_layers("vgg19"), BATCH, 0)
    assert not choose("ralp:threshold=-9/ring").plan(subject.trace, subject.layers, 4, BATCH).has_own_messages


@pytest.mark.parametrize(
    "name, hosts",
    [
        ("ralp/ps", ("server0", "server0")),
        ("ralp/ring", ("server0",)),
        ("ralp/ps:servers=2:colocated", ("server0",)),
        ("adam:servers=3/ps", ("server0", "server0", "server1", "server2")),
        ("adam:servers=2/ps:servers=2:colocated", ("worker0", "worker1")),
        ("sfb/ps", ("server0",)),
        ("poseidon:servers=2", ("server0", "server1")),
        ("poseidon:servers=2:colocated", ("worker0", "worker1")),
    ],
)
def test_a_strategys_servers_live_with_the_mechanisms(name: str, hosts: tuple[str, ...]) -> None:
    assert choose(name).server_hosts == hosts
    assert choose(name).hosts == len({host for host in hosts if host.startswith("server")})


def test_what_is_not_known_is_said_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "two.trace"
    write(two_layers(), file)
    with pytest.raises(HostlibError, match=r"^sfb/ring needs layers' kinds, matrices and outputs, which"):
        workload_of(recorded(file), choose("sfb/ring"), 4)
    sharing = "servers cannot share the hosts of"
    with pytest.raises(HostlibError, match=rf"^poseidon:servers=5:colocated/gloo: 5 {sharing} 4 workers$"):
        workload_of(VGG_LIKE, choose("poseidon:servers=5:colocated"), 4)
    path = tmp_path / "trained.toml"
    cells = '[cells]\nmodels = ["lenet"]\nmechanisms = ["poseidon:servers=3:colocated"]\nworkers = [2]\n'
    path.write_text(f"{cells}[training]\n")
    with pytest.raises(ExperimentError, match=rf"3 {sharing} 2 workers$"):
        read_experiment(path)
    with pytest.raises(SimulationError, match=r"^bsp/ring is a training strategy: name a --model"):
        workload_of(bare(1000, 0), choose("bsp/ring"), 4)
