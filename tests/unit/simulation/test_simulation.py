"""The engine against what can be worked out on paper, against a plain player, and against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostlib.errors import QuantityError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import (
    Operation,
    Receive,
    Schedule,
    Send,
    Symmetry,
    image,
    is_host,
    link_elements,
    worker,
)
from hostlib.text.units import bandwidth, size, time_ns
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.builtin.star import star
from hostlib.traces.trace import Layer, Parameter, Trace, synthesise
from simulation.errors import ArchitectureError, NetworkError, SimulationError
from simulation.models.synthetic_trace import model_trace
from simulation.simulator.compile import compile_schedule, reduced
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Order, only, play
from simulation.simulator.workload import Variation, Workload, of_size, of_trace, trace_of_size
from tests.unit.simulation.plain_player import PlainPlayer

MEGABYTE = 10**6
GIGABIT = Network(1e9)
ONE_WAY_NS = 8_000_000  # a megabyte over a gigabit link
MECHANISMS = (
    "butterfly",
    "halving-doubling",
    "inagg",
    "inagg+mcast",
    "inagg+mcast:via_server",
    "inagg:servers=3:assign=even",
    "mcast",
    "ps",
    "ps:servers=2:assign=pairs",
    "ps:servers=2:colocated",
    "ring",
    "ring:split=no",
    "ring+mcast",
    "tree",
)
SYMMETRIC = ("butterfly", "halving-doubling", "ring", "ring+mcast", "ps:servers=8:assign=even:colocated")


def bare_ns(mechanism: str, workers: int, size_bytes: int = MEGABYTE, network: Network = GIGABIT) -> float:
    job = Job(of_size(size_bytes), find(mechanism), workers, bare=True)
    return only(network, job)[0].iteration_end_ns[1]


def small_trace(layers: int = 3, bytes_: int = 40_000) -> Trace:
    names = [f"layer{i}" for i in range(layers)]
    return synthesise(
        [Layer(name, 100_000, 200_000) for name in names],
        [Parameter(f"{n}/weights", bytes_ * (i + 1), n) for i, n in enumerate(names)],
    )


# ---- what paper and pencil say -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_the_fabric_takes_one_tensor_time_when_it_streams(workers: int) -> None:
    job = Job(of_size(MEGABYTE), find("inagg+mcast"), workers, bare=True)
    outcome, played = only(GIGABIT, job)
    assert outcome.iteration_end_ns[1] == ONE_WAY_NS
    assert set(played.link_bytes.values()) == {(MEGABYTE, MEGABYTE)}


def test_storing_whole_sums_takes_twice_as_long() -> None:
    assert bare_ns("inagg+mcast", 4, network=Network(1e9, store_and_aggregate=True)) == 2 * ONE_WAY_NS


def test_storing_whole_messages_adds_one_message_time_to_each_step() -> None:
    assert bare_ns("ring", 4, 4 * MEGABYTE, Network(1e9, store_and_forward=True)) == 2 * 6 * ONE_WAY_NS


@pytest.mark.parametrize("workers", [2, 4, 5, 8])
def test_a_ring_takes_its_bound(workers: int) -> None:
    assert bare_ns("ring", workers, MEGABYTE * workers) == 2 * (workers - 1) * ONE_WAY_NS


def test_latency_counts_once_and_overhead_too_per_message() -> None:
    network = Network(1e9, latency_ns=1000, overhead_ns=300)
    assert bare_ns("inagg+mcast", 4, network=network) == ONE_WAY_NS + 1300
    assert bare_ns("ring", 4, 4 * MEGABYTE, network) == 6 * (ONE_WAY_NS + 1300)


def test_a_server_takes_every_tensor_in_turn_each_way() -> None:
    assert bare_ns("ps", 4) == 2 * 4 * ONE_WAY_NS


def test_an_oversubscribed_spine_is_the_bound() -> None:
    """Sixteen flows from rack to rack share a way of 16 / 4 hosts' bandwidth: each has a quarter. Whole messages go one
    after the other, so that the last of them is late by its own time on the slower link at the end."""
    lists = {}
    for rank in range(32):
        other = worker((rank + 16) % 32)
        lists[worker(rank)] = (Send(other, 0), Receive(other, 0, reduce=True))
    swap = Schedule("swap", 32, 1, lists)
    mechanism = Mechanism("swap", MechanismSpec("swap", "racks change places", lambda world_size: swap))
    job = Job(of_size(MEGABYTE, 10_000), mechanism, 32, bare=True)
    racks = Network(1e9, racks=2, oversubscription=4)
    outcome, played = only(racks, job)
    assert outcome.iteration_end_ns[1] == pytest.approx(4 * ONE_WAY_NS, rel=0.02)
    assert played.link_bytes["leaf0"] == (16 * MEGABYTE, 16 * MEGABYTE)
    assert only(replace(racks, oversubscription=1), job)[0].iteration_end_ns[1] == pytest.approx(ONE_WAY_NS, rel=0.02)
    whole = only(racks, replace(job, workload=of_size(MEGABYTE)))[0].iteration_end_ns[1]
    assert whole == (15 * 2 / 8 + 1) * ONE_WAY_NS


def test_a_server_on_the_spine_is_as_far_from_every_rack() -> None:
    job = Job(of_size(MEGABYTE, 10_000), find("ps"), 4, bare=True)
    network = Network(1e9, topology=leaf_spine(4, 4, servers=1, rate_bits_s=1e9, oversubscription=4))
    outcome, played = only(network, job)
    # Four ways of a quarter of the server's bandwidth each: it is the bound, up and down at the same time.
    assert outcome.iteration_end_ns[1] == pytest.approx(4 * ONE_WAY_NS, rel=0.02)
    assert {played.link_bytes[f"leaf{rack}"] for rack in range(4)} == {(MEGABYTE, MEGABYTE)}
    _, dealt = only(Network(1e9, racks=4, oversubscription=4), job)
    assert dealt.link_bytes["leaf0"] == (3 * MEGABYTE, 3 * MEGABYTE)


def test_sums_at_two_levels_spare_the_spine() -> None:
    job = Job(of_size(MEGABYTE), find("inagg+mcast:racks=4"), 16, bare=True)
    outcome, played = only(Network(1e9, racks=4, oversubscription=4), job)
    assert outcome.iteration_end_ns[1] == ONE_WAY_NS
    assert played.link_bytes["leaf2"] == (MEGABYTE, MEGABYTE)


def test_a_multicast_crosses_each_link_once() -> None:
    job = Job(of_size(MEGABYTE), find("mcast"), 16, bare=True)
    _, played = only(Network(1e9, racks=4), job)
    assert played.link_bytes["server0"] == (MEGABYTE, 16 * MEGABYTE)
    assert {received for name, (_, received) in played.link_bytes.items() if name != "server0" and name != "leaf0"} == {
        MEGABYTE
    }


def test_two_jobs_on_the_same_hosts_share_their_links() -> None:
    job = Job(of_size(MEGABYTE), find("inagg+mcast"), 4, bare=True)
    assert [o.iteration_end_ns[1] for o in play(GIGABIT, [job, job]).outcomes] == [ONE_WAY_NS, 2 * ONE_WAY_NS]
    assert [o.iteration_end_ns[1] for o in play(GIGABIT, [job, job], apart=True).outcomes] == [ONE_WAY_NS] * 2


FRAME_NS, FRAME_BYTES = 8000, 1000  # at a gigabit a second


@pytest.mark.parametrize("slots", [1, 2, 7, 128])
@pytest.mark.parametrize("frames", [1, 6, 7, 8, 400])
def test_a_slot_is_used_again_when_its_result_is_there(slots: int, frames: int) -> None:
    """Frame by frame, by docs/protocol.md: the prologue's round trip, then position k when k - slots has its result."""
    way_ns, turnaround_ns = 50_000, 3_000
    network = Network(1e9, latency_ns=way_ns, slots=slots, slot_bytes=FRAME_BYTES, turnaround_ns=turnaround_ns)
    outcome, _ = only(network, Job(of_size(frames * FRAME_BYTES), find("inagg+mcast"), 3, bare=True))
    round_trip_ns = way_ns + FRAME_NS + turnaround_ns
    leaves = [round_trip_ns]
    for k in range(1, frames):
        leaves.append(max(leaves[k - 1] + FRAME_NS, leaves[k - slots] + round_trip_ns if k >= slots else 0))
    assert outcome.iteration_end_ns[1] == pytest.approx(leaves[-1] + FRAME_NS + way_ns, abs=1)


def test_tensors_share_a_ranks_slots() -> None:
    network = Network(1e9, latency_ns=50_000, slots=4, slot_bytes=FRAME_BYTES)
    ends = []
    for count in (1, 8):
        workload = of_trace(trace_of_size(4 * count * FRAME_BYTES), 4 * FRAME_BYTES)
        assert len(workload.tensors) == count
        ends.append(only(network, Job(workload, find("inagg+mcast"), 2, bare=True))[0].iteration_end_ns[1])
    assert ends[1] - ends[0] == pytest.approx(7 * (50_000 + FRAME_NS), abs=10), "each waits for the one before"


def test_streams_of_chunks_share_a_jobs_slots() -> None:
    """A source hears from its receivers how far they are: a way there, and one back, for twice the slots over streams."""
    way_ns = 50_000
    network = Network(1e9, latency_ns=way_ns, slots=8, slot_bytes=FRAME_BYTES)
    outcome, _ = only(network, Job(of_size(64 * FRAME_BYTES), find("mcast"), 2, bare=True))
    unlimited, _ = only(replace(network, slots=0), Job(of_size(64 * FRAME_BYTES), find("mcast"), 2, bare=True))
    round_trip_ns = 2 * (way_ns + FRAME_NS)
    rounds = 64 // 16
    late_ns = (rounds - 1) * round_trip_ns + 16 * FRAME_NS - 64 * FRAME_NS
    assert outcome.iteration_end_ns[1] - unlimited.iteration_end_ns[1] == pytest.approx(max(late_ns, 0), abs=10)
    with pytest.raises(NetworkError, match="1 slots are too few for 3 streams of chunks"):
        only(replace(network, slots=1), Job(of_size(MEGABYTE), find("ring+mcast"), 3, bare=True))


def test_jobs_have_slots_of_their_own() -> None:
    job = Job(of_size(MEGABYTE), find("inagg+mcast"), 4, bare=True)
    network = Network(1e9, latency_ns=50_000, slots=4, slot_bytes=FRAME_BYTES)
    alone, _ = only(network, job)
    both = play(network, [job, job], apart=True)
    assert [o.iteration_end_ns[1] for o in both.outcomes] == [alone.iteration_end_ns[1]] * 2


def played_ns(lists: dict[str, tuple[Operation, ...]], network: Network, workers: int) -> float:
    """How long a schedule of two pieces takes, a megabyte each."""
    made = Schedule("made", workers, 2, lists)
    job = Job(
        of_size(2 * MEGABYTE),
        Mechanism("made", MechanismSpec("made", "by hand", lambda world_size: made)),
        workers,
        bare=True,
    )
    return only(network, job)[0].iteration_end_ns[1]


SHARED = replace(GIGABIT, turn_bytes=10_000)


def test_streams_to_one_host_share_its_link() -> None:
    """Two send to worker 2, who passes one of the pieces on: it waits for the other's half of the link."""
    lists = {
        worker(0): (Send(worker(2), 0),),
        worker(1): (Send(worker(2), 1),),
        worker(2): (Receive(worker(0), 0, reduce=True), Send(worker(3), 0), Receive(worker(1), 1, reduce=True)),
        worker(3): (Receive(worker(2), 0, reduce=True),),
    }
    assert played_ns(lists, GIGABIT, 4) == 2 * ONE_WAY_NS
    assert played_ns(lists, SHARED, 4) == pytest.approx(3 * ONE_WAY_NS, rel=0.01)


def test_a_servers_streams_share_its_link_a_workers_follow_each_other() -> None:
    """Worker 0, or the server in its place, has something for two; the first of them passes it on."""

    def fan(sender: str) -> dict[str, tuple[Operation, ...]]:
        return {
            sender: (Send(worker(1), 0), Send(worker(2), 1)),
            worker(1): (Receive(sender, 0, reduce=True), Send(worker(3), 0)),
            worker(2): (Receive(sender, 1, reduce=True),),
            worker(3): (Receive(worker(1), 0, reduce=True),),
        }

    assert played_ns(fan(worker(0)), SHARED, 4) == pytest.approx(2 * ONE_WAY_NS, rel=0.01)
    with_server = {worker(0): (), **fan("server0")}
    assert played_ns(with_server, GIGABIT, 4) == 2 * ONE_WAY_NS
    assert played_ns(with_server, SHARED, 4) == pytest.approx(3 * ONE_WAY_NS, rel=0.01)


def test_streams_to_one_host_take_turns_in_no_more_time_than_messages() -> None:
    assert bare_ns("ps", 4, network=SHARED) == pytest.approx(2 * 4 * ONE_WAY_NS, rel=0.01)
    assert bare_ns("ring", 4, 4 * MEGABYTE, SHARED) == pytest.approx(6 * ONE_WAY_NS, rel=0.01)
    with_overhead = replace(SHARED, overhead_ns=300)
    assert bare_ns("ring", 4, 4 * MEGABYTE, with_overhead) == pytest.approx(6 * (ONE_WAY_NS + 300), rel=1e-6)


def test_in_one_channel_a_tensor_begins_when_the_one_before_has_ended() -> None:
    far = Network(1e9, latency_ns=1_000_000)
    two = replace(of_size(4 * MEGABYTE), tensors=of_size(4 * MEGABYTE).tensors * 2, released=((0, 1),))
    job = Job(two, find("ring"), 4, bare=True)
    one_ns = 6 * (ONE_WAY_NS + 1_000_000)
    assert only(far, replace(job, channels=1))[0].iteration_end_ns[1] == 2 * one_ns
    assert only(far, job)[0].iteration_end_ns[1] < 2 * one_ns
    assert only(far, replace(job, channels=2))[0].iteration_end_ns[1] == only(far, job)[0].iteration_end_ns[1]


def test_messages_let_a_ring_of_whole_tensors_overlap() -> None:
    whole = only(GIGABIT, Job(of_size(MEGABYTE), find("ring:split=no"), 4, bare=True))[0].iteration_s
    split = only(GIGABIT, Job(of_size(MEGABYTE, 10_000), find("ring:split=no"), 4, bare=True))[0].iteration_s
    assert whole == pytest.approx(6 * 8e-3)
    assert 2 * 8e-3 <= split < 2.2 * 8e-3


# ---- training ------------------------------------------------------------------------------------------------------


def test_an_iteration_that_computes_longer_than_it_sends() -> None:
    """Forward 3 x 0.1 ms, backward 3 x 0.2 ms, then the first layer's 40 kB at 10 Gbit/s: 32 us."""
    outcome = only(Network(10e9), Job(of_trace(small_trace()), find("inagg+mcast"), 4))[0]
    assert outcome.forward_end_ns[1] == [300_000] * 4
    assert outcome.backward_end_ns[1] == [900_000] * 4
    assert outcome.iteration_end_ns[1] == 932_000


def test_the_forward_pass_waits_for_its_own_layer_only_where_it_is_pipelined() -> None:
    job = Job(of_trace(small_trace()), find("inagg+mcast:via_server"), 4)
    forward_ends = {}
    for pipelined in (True, False):
        forward_ends[pipelined] = only(Network(1e9), replace(job, pipelined=pipelined))[0].forward_end_ns[1][0]
    # 40, 80 and 120 kB arrive after 0.32, 0.96 and 1.92 ms; a layer takes 0.1 ms.
    assert forward_ends == {True: 2_020_000, False: 2_220_000}


def test_block_distribution_staggers_the_workers() -> None:
    job = Job(of_trace(small_trace()), find("ps"), 4)
    ends = {order: only(GIGABIT, replace(job, order=order))[0].forward_end_ns[1] for order in Order}
    assert np.ptp(ends[Order.ROUND_ROBIN]) == 3 * 960_000  # the last parameter, to one worker after the other
    assert np.ptp(ends[Order.BLOCK]) == 3 * 1_920_000  # the whole model
    assert ends[Order.PRIORITY] == ends[Order.ROUND_ROBIN]
    assert ends[Order.RANDOM] == only(GIGABIT, replace(job, order=Order.RANDOM))[0].forward_end_ns[1]


def test_priority_lets_the_first_layer_overtake() -> None:
    trace = synthesise(
        [Layer("first", 0, 1000), Layer("second", 0, 1000)],
        [
            Parameter("first/w", 1000, "first"),
            Parameter("second/a", MEGABYTE, "second"),
            Parameter("second/b", MEGABYTE, "second"),
        ],
    )
    job = Job(of_trace(trace), find("inagg+mcast"), 2)
    in_turn, first = (
        only(GIGABIT, replace(job, order=o))[0].delivered_ns[1][0] for o in (Order.ROUND_ROBIN, Order.PRIORITY)
    )
    assert in_turn > 2 * ONE_WAY_NS > 1.1 * ONE_WAY_NS > first


def test_without_a_barrier_an_iteration_takes_no_longer() -> None:
    workload = of_trace(small_trace())
    for mechanism in ("ring", "inagg+mcast", "inagg+mcast:via_server", "ps"):
        job = Job(workload, find(mechanism), 4)
        with_barrier = only(GIGABIT, job)[0].iteration_s
        assert only(GIGABIT, replace(job, iterations=4, barrier=False))[0].iteration_s <= with_barrier * 1.000001
        assert only(GIGABIT, replace(job, iterations=3))[0].iteration_s == pytest.approx(with_barrier)


def test_a_straggler_holds_up_all() -> None:
    job = Job(of_trace(small_trace()), find("ring"), 4)
    slow = only(Network(100e9), replace(job, variation=Variation(stragglers={2: 3.0})))[0]
    assert slow.backward_end_ns[1] == [900_000, 900_000, 2_700_000, 900_000]
    assert slow.iteration_end_ns[1] > 2_700_000


def test_recorded_workers_differ_as_recorded() -> None:
    trace = small_trace()
    slower = tuple(replace(e, source="worker1", time_ns=2 * e.time_ns) for e in trace.events if e.source == "worker0")
    outcome = only(Network(100e9), Job(of_trace(replace(trace, events=trace.events + slower)), find("ring"), 4))[0]
    assert outcome.backward_end_ns[1] == [900_000, 1_300_000, 900_000, 1_300_000]


# ---- against others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("stores", [False, True])
def test_the_kernel_agrees_with_the_plain_player(mechanism: str, workers: int, stores: bool) -> None:
    size_bytes = 960_000  # whose pieces are whole elements
    plain = PlainPlayer(find(mechanism).schedule(workers, size=size_bytes), size_bytes, 1e9, stores).play()
    assert bare_ns(mechanism, workers, size_bytes, Network(1e9, store_and_aggregate=stores)) == pytest.approx(plain)


@given(st.sampled_from(MECHANISMS), st.integers(2, 9), st.integers(1, 3000), st.floats(1e6, 1e11))
@settings(max_examples=60, deadline=None)
def test_bytes_are_the_schedules_and_time_keeps_its_bounds(mechanism: str, n: int, elements: int, rate: float) -> None:
    network = Network(rate, latency_ns=700)
    job = Job(of_size(4 * elements), find(mechanism), n, bare=True)
    outcome, played = only(network, job)
    wanted = link_elements(find(mechanism).schedule(n, size=4 * elements), elements)
    assert {k: (s // 4, r // 4) for k, (s, r) in played.link_bytes.items() if is_host(k)} == wanted
    busiest = max(max(both) for name, both in played.link_bytes.items() if is_host(name))
    assert outcome.iteration_end_ns[1] >= busiest * 8e9 / rate * (1 - 1e-9)
    assert outcome.iteration_end_ns[1] >= 700


@given(
    st.sampled_from([*((mechanism, 8) for mechanism in SYMMETRIC), ("halving-doubling", 6), ("halving-doubling", 7)]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 400),
)
@settings(max_examples=40, deadline=None)
def test_one_worker_stands_for_all(mechanism: tuple[str, int], layers: int, unit: int, latency: int) -> None:
    """Exactly, where pieces are equal; the bytes always."""
    name, workers = mechanism
    trace = small_trace(layers, 4 * 6 * 7 * 8 * unit * 10)
    job = Job(of_trace(trace), find(name), workers, iterations=2, reduce=True)
    network = Network(10e9, latency_ns=2 * latency, overhead_ns=latency)
    one, stood = only(network, job)
    all_, full = only(network, replace(job, reduce=False))
    assert (stood.stood_for, full.stood_for) == (workers, 1)
    assert one.iteration_end_ns == all_.iteration_end_ns
    assert stood.link_bytes == full.link_bytes


@pytest.mark.parametrize("mechanism", SYMMETRIC)
def test_with_unequal_pieces_one_worker_is_a_close_upper_bound(mechanism: str) -> None:
    job = Job(of_trace(small_trace(3, 40_036)), find(mechanism), 8, reduce=True)
    one, stood = only(Network(10e9), job)
    all_, full = only(Network(10e9), replace(job, reduce=False))
    assert all_.iteration_s <= one.iteration_s <= all_.iteration_s * 1.001
    assert stood.link_bytes == full.link_bytes


def test_workers_who_do_not_do_the_same_are_not_reduced() -> None:
    assert reduced(find("tree").schedule(8)) is None
    honest = find("ring").schedule(8)
    lists = {node: honest.nodes[node] for node in honest.nodes}
    lists[worker(5)] = lists[worker(5)][::-1]
    assert reduced(honest) is not None
    assert reduced(replace(honest, nodes=lists)) is None


def test_symmetry_is_that_of_the_schedules() -> None:
    for workers, symmetry in ((4, Symmetry.XOR), (5, Symmetry.ROTATION)):
        schedule = find("halving-doubling").schedule(workers)
        assert schedule.symmetry is symmetry
        assert tuple(image(schedule, op, 3) for op in schedule.nodes[worker(0)]) == schedule.nodes[worker(3)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_tensor_is_played_by_its_own_schedule(mechanism: str) -> None:
    """Schedules that tensors share are the same as each tensor's own."""
    from simulation.simulator.play import _programs

    workload = of_trace(small_trace(5, MEGABYTE))
    made, of_tensor, _ = _programs(Job(workload, find(mechanism), 3), star(3), True, False)
    for tensor, program in zip(workload.tensors, of_tensor, strict=True):
        own = compile_schedule(find(mechanism).schedule(3, size=tensor.bytes, turn=tensor.turn))
        assert all(
            np.array_equal(getattr(own, f), getattr(made[program].compiled, f)) for f in ("begin", "ops", "peers")
        )


def test_jitter_is_its_seeds() -> None:
    job = Job(of_trace(small_trace()), find("ps"), 6)

    def time_s(variation: Variation) -> float:
        return only(GIGABIT, replace(job, variation=variation))[0].iteration_s

    assert time_s(Variation(0.3, seed=1)) == time_s(Variation(0.3, seed=1)) != time_s(Variation(0.3, seed=2))
    assert time_s(Variation(0, seed=1)) == time_s(Variation(0, seed=2))
    durations = Variation(0.2).durations_ps(np.full((1, 400), 1000), 50, 2, 0)
    assert durations.mean() == pytest.approx(1e6, rel=0.01)
    assert durations.std() == pytest.approx(2e5, rel=0.05)


def test_a_thousand_workers_are_soon_played() -> None:
    """What takes long, and what is played by one for all; the plan is a minute, on an idle core it is seconds."""
    workload = of_trace(model_trace("resnet50"))
    for mechanism in ("ring", "ps"):
        outcome, played = only(Network(25e9), Job(workload, find(mechanism), 1024))
        assert played.wall_s < 60
        assert outcome.iteration_s > workload.bytes * 8 / 25e9


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_quantities() -> None:
    assert (bandwidth("25gbit"), size("16MiB"), size("4096"), time_ns("5us")) == (25e9, 2**24, 4096, 5000)
    assert {bandwidth(text) for text in ("25Gbit/s", "25gbps", "25Gb/s", "25G", "25 Gbps", "25000mbit")} == {25e9}


@pytest.mark.parametrize("text", ["25GB/s", "25GBps", "3MB", "3 bytes/s"])
def test_a_bandwidth_in_bytes_is_refused_and_not_taken_for_bits(text: str) -> None:
    with pytest.raises(QuantityError, match="is in bytes; links are in bits per second"):
        bandwidth(text)


@pytest.mark.parametrize(
    ("read", "text"), [(bandwidth, "25"), (bandwidth, "0gbit"), (size, "-1"), (time_ns, "5 parsecs")]
)
def test_what_is_no_quantity_is_refused(read, text: str) -> None:
    with pytest.raises(QuantityError):
        read(text)


def workload() -> Workload:
    return of_trace(small_trace())


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Network(0), NetworkError, "bandwidth_bits_s must be above 0"),
        (lambda: Network(1e9, latency_ns=-1), NetworkError, "latency_ns must be at least 0, not -1"),
        (lambda: Network(1e9, oversubscription=0), NetworkError, "oversubscription must be above 0"),
        (lambda: only(Network(1e9, racks=9), Job(workload(), find("ring"), 8)), NetworkError, "racks must be in 1..8"),
        (
            lambda: only(GIGABIT, Job(workload(), find("inagg+mcast:racks=2"), 4)),
            NetworkError,
            "is for a network with a switch leaf1; this one has switch",
        ),
        (lambda: Job(workload(), find("gloo"), 4), SimulationError, "gloo is a library's own"),
        (lambda: Job(workload(), find("ring"), 0), SimulationError, "workers must be at least 1"),
        (lambda: Variation(-0.1), SimulationError, "jitter must be 0 or more"),
        (lambda: Variation(stragglers={1: 0}), SimulationError, "--straggler takes RANK=FACTOR, with FACTOR above 0"),
        (
            lambda: only(GIGABIT, Job(workload(), find("ps"), 2, variation=Variation(stragglers={7: 2}))),
            SimulationError,
            "--straggler 7: there are only 2 workers",
        ),
        (lambda: model_trace("vgg17"), ArchitectureError, "unknown model 'vgg17'; legal are alexnet"),
        (lambda: model_trace("vgg16", 16), ArchitectureError, "too small"),
        (lambda: model_trace("vgg16", forward_s=-1), SimulationError, "a forward time must be 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(call, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_a_message_nobody_receives_is_named() -> None:
    schedule = Schedule("lost", 2, 1, {worker(0): (Send(worker(1), 0),), worker(1): ()})
    with pytest.raises(SimulationError, match="lost: worker0 has to send piece 0 to worker1, which never receives it"):
        compile_schedule(schedule)


def test_who_waits_for_ever_is_named() -> None:
    lists = {worker(r): (Receive(worker(1 - r), 0, reduce=True), Send(worker(1 - r), 0)) for r in range(2)}
    stuck = Schedule("stuck", 2, 1, lists)
    mechanism = Mechanism("stuck", MechanismSpec("stuck", "waits for ever", lambda world_size: stuck))
    with pytest.raises(SimulationError, match="stuck: worker0 waits forever for layer0/weights"):
        only(GIGABIT, Job(workload(), mechanism, 2))
