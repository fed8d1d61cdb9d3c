"""How connections, servers behind a switch and several jobs share links, against what can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import netfold
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.schedule import Receive, Schedule, Send, worker
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.builtin.star import star
from simulation.simulator.network import Network
from simulation.simulator.play import Job, only, play
from simulation.simulator.workload import in_parts, of_size

MEGABYTE = 10**6
RATE_BITS_S = 1e9
BYTE_NS = 8
TURN_BYTES = 10_000
FRAME_BYTES = 1000


def bare(mechanism: str | Mechanism, workers: int, size_bytes: int = MEGABYTE) -> Job:
    made = find(mechanism) if isinstance(mechanism, str) else mechanism
    return Job(of_size(size_bytes), made, workers, bare=True, channels=made.channels)


@pytest.mark.parametrize("turns", [1, 3, 20])
def test_a_connections_bytes_wait_for_acknowledgements(turns: int) -> None:
    """Two workers send each other halves, twice. A window of `turns` turns is sent in each round trip, if that is longer
    than sending them.
    """
    way_ns = 1_000_000
    network = Network(
        RATE_BITS_S,
        topology=star(2, 0, RATE_BITS_S, way_ns / 2),
        turn_bytes=TURN_BYTES,
        window_bytes=turns * TURN_BYTES,
    )
    turn_ns, parts = TURN_BYTES * BYTE_NS, MEGABYTE // 2 // TURN_BYTES
    leaves = [0]
    for k in range(1, 2 * parts):
        acknowledged = leaves[k - turns] + turn_ns + 2 * way_ns if k >= turns else 0
        received = leaves[k - 1] + turn_ns + way_ns if k == parts else 0  # the second half follows the other's first
        leaves.append(max(leaves[k - 1] + turn_ns, acknowledged, received))
    expected = leaves[-1] + turn_ns + way_ns
    assert only(network, bare("ring", 2))[0].iteration_s * 1e9 == pytest.approx(expected, rel=1e-9)


def test_a_sender_whose_receiver_is_busy_waits_with_what_follows() -> None:
    """In a tree of five, hosts with two children are behind. With any number of bytes under way, their children would go
    on to other hosts meanwhile, and would be through sooner than they can be.
    """
    network = Network(RATE_BITS_S, topology=star(5, 0, RATE_BITS_S, 0), turn_bytes=TURN_BYTES)
    unlimited, limited = (
        only(replace(network, window_bytes=window), bare("tree", 5, 8 * MEGABYTE))[0].iteration_s
        for window in (0, 2 * TURN_BYTES)
    )
    assert limited > 1.03 * unlimited
    # A window as large as all that is ever sent to one host is no window.
    same = only(replace(network, window_bytes=100 * MEGABYTE), bare("tree", 5, 8 * MEGABYTE))[0].iteration_s
    assert same == pytest.approx(unlimited, rel=1e-12)


def test_connections_to_different_hosts_have_windows_of_their_own() -> None:
    """A server sends to three workers at a time: each window is one round trip's worth, together the link is full."""
    way_ns = 40_000
    network = Network(
        RATE_BITS_S, topology=star(3, 1, RATE_BITS_S, way_ns / 2), turn_bytes=TURN_BYTES, window_bytes=TURN_BYTES
    )
    seconds = only(network, bare("ps", 3))[0].iteration_s
    everything = 3 * MEGABYTE * BYTE_NS * 2
    assert seconds * 1e9 == pytest.approx(everything, rel=0.05)


@pytest.mark.parametrize(("turn_bytes", "rounds"), [(0, 1), (TURN_BYTES, 2)])
def test_a_message_leaves_when_its_receiver_has_begun_the_tensor(turn_bytes: int, rounds: int) -> None:
    """The second worker computes for longer than the first one's message takes. It comes before that, if whole messages
    are sent at once. Otherwise it is requested then, and the sum comes after it.
    """
    late_ns, way_ns = 3 * MEGABYTE * BYTE_NS, 20_000
    network = Network(RATE_BITS_S, topology=star(2, 0, RATE_BITS_S, way_ns / 2), turn_bytes=turn_bytes)
    workload = replace(of_size(MEGABYTE), backward_ns=np.array([[0], [late_ns]]))
    job = replace(bare("ring:split=no", 2), workload=workload, bare=False)
    expected = late_ns + rounds * (MEGABYTE * BYTE_NS + way_ns) + (way_ns if turn_bytes else 0)
    assert only(network, job)[0].iteration_s * 1e9 == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("window_bytes", [0, 10 * TURN_BYTES])
def test_a_host_goes_on_when_its_connections_have_taken_all_it_sends(window_bytes: int) -> None:
    """The first worker sends one tensor, and gets the other from a third one. It requests that when all but a window of
    what it sends has been acknowledged; without windows, at once.
    """

    def schedule(world_size: int, turn: int) -> Schedule:
        source, target = ((0, 1), (2, 0))[turn]
        lists = {worker(rank): () for rank in range(world_size)}
        lists |= {
            worker(source): (Send(worker(target), 0),),
            worker(target): (Receive(worker(source), 0, reduce=False),),
        }
        return Schedule("by-turns", world_size, 1, lists)

    network = Network(
        RATE_BITS_S, topology=star(3, 0, RATE_BITS_S, 0), turn_bytes=TURN_BYTES, window_bytes=window_bytes
    )
    one = of_size(MEGABYTE)
    two = replace(one, tensors=(one.tensors[0], replace(one.tensors[0], turn=1)), released=((0, 1),))
    job = replace(bare(Mechanism("by-turns", MechanismSpec("by-turns", "made", schedule)), 3), workload=two, channels=1)
    waits = MEGABYTE - window_bytes if window_bytes else 0
    assert only(network, job)[0].iteration_s * 1e9 == pytest.approx((waits + MEGABYTE) * BYTE_NS, rel=0.005)


@pytest.mark.parametrize("workers", range(1, 18))
@pytest.mark.parametrize("mechanism", ["ring", "tree", "halving-doubling", "butterfly", "ps:servers=3"])
def test_messages_without_bytes_are_played(mechanism: str, workers: int) -> None:
    """Most pieces of one value have none. Every worker's value is sent, and its sum received."""
    for size in ("1B", "4B", "20B"):
        found = netfold.predict(None, mechanism, workers, "25gbit", size=size)
        links = [each for name, each in found.bytes_per_link.items() if name.startswith("worker")]
        assert (found.iteration_s > 0) == (workers > 1) and found.iteration_s < 1e-3
        assert all(min(each.values()) >= int(size[:-1]) for each in links) or workers == 1


@pytest.mark.parametrize("window_bytes", [0, 2 * TURN_BYTES])
@pytest.mark.parametrize("servers", [1, 4])
def test_servers_that_distribute_first_share_their_links_in_turns(servers: int, window_bytes: int) -> None:
    """Each iteration takes as long as sums and parameters on the busiest link: a server's."""
    network = Network(
        RATE_BITS_S, topology=star(4, servers, RATE_BITS_S, 0), turn_bytes=TURN_BYTES, window_bytes=window_bytes
    )
    job = replace(bare(f"ps:servers={servers}", 4), bare=False, iterations=3)
    found = only(network, job)[0]
    assert found.iteration_end_ns == pytest.approx([n * 4 * MEGABYTE * BYTE_NS * 2 for n in range(4)], rel=0.02)


@pytest.mark.parametrize(("mechanism", "down"), [("inagg", 3), ("inagg+mcast:via_server", 1)])
def test_a_server_behind_the_switch_passes_on_packet_by_packet(mechanism: str, down: int) -> None:
    """The sums come and their results go at the same time, where frames are: the server's link is what limits."""
    network = Network(RATE_BITS_S, topology=star(3, 1, RATE_BITS_S, 0), turn_bytes=TURN_BYTES, frame_bytes=FRAME_BYTES)
    seconds = only(network, bare(mechanism, 3))[0].iteration_s
    assert seconds * 1e9 == pytest.approx(down * MEGABYTE * BYTE_NS, rel=0.02)
    whole = only(replace(network, frame_bytes=0), bare(mechanism, 3))[0].iteration_s
    assert whole * 1e9 == pytest.approx((1 + down) * MEGABYTE * BYTE_NS, rel=0.02)


@pytest.mark.parametrize("jobs", [2, 3])
def test_jobs_share_an_uplink_with_their_frames(jobs: int) -> None:
    """Whole tensors would pass one after the other: the first job would have the uplink for itself."""
    topology = leaf_spine(2 * jobs, 2, 0, RATE_BITS_S, float(jobs))
    network = Network(RATE_BITS_S, topology=topology, frame_bytes=FRAME_BYTES)
    job = bare("inagg+mcast", 2)
    split = replace(job, workload=in_parts(job.workload, 64, FRAME_BYTES))
    fair, whole = (
        [outcome.iteration_s * 1e9 for outcome in play(network, [each] * jobs, apart=True).outcomes]
        for each in (split, job)
    )
    # The uplink has a host's rate: it carries all jobs' tensors, one after the other or together.
    everything = jobs * MEGABYTE * BYTE_NS
    assert max(fair) == pytest.approx(everything, rel=0.03)
    assert min(fair) > 0.95 * max(fair)
    assert min(whole) < 0.8 * max(whole)


def test_the_parts_of_a_tensor_have_one_prologue() -> None:
    """With slots, a tensor begins a round trip late, however many parts it is played in."""
    network = Network(
        RATE_BITS_S,
        topology=star(2, 0, RATE_BITS_S, 500_000),
        frame_bytes=FRAME_BYTES,
        slots=4096,
        slot_bytes=FRAME_BYTES,
    )
    job = bare("inagg+mcast", 2)
    whole = only(network, job)[0].iteration_s
    parts = only(network, replace(job, workload=in_parts(job.workload, 50, FRAME_BYTES)))[0].iteration_s
    assert parts == pytest.approx(whole, rel=1e-3)


def test_parts_are_whole_frames_and_all_of_a_tensor() -> None:
    workload = in_parts(of_size(10_500), 4, FRAME_BYTES)
    assert [tensor.bytes for tensor in workload.tensors] == [3000, 3000, 3000, 1500]
    assert [tensor.first_part for tensor in workload.tensors] == [0, 0, 0, 0]
    assert workload.released == ((0, 1, 2, 3),)
    assert in_parts(of_size(10), 4, FRAME_BYTES).tensors == of_size(10).tensors


@pytest.mark.parametrize(
    ("mechanism", "frames"), [("inagg+mcast", 11), ("inagg", 11), ("mcast", 11), ("ring:split=no", 0)]
)
def test_frames_of_the_slot_protocol_are_padded(mechanism: str, frames: int) -> None:
    """Ten frames' values and one more take eleven frames; what hosts send by messages takes its bytes."""
    network = Network(RATE_BITS_S, topology=star(3, 1, RATE_BITS_S, 0), frame_bytes=FRAME_BYTES, slot_bytes=FRAME_BYTES)
    size = 10 * FRAME_BYTES + 4
    received = play(network, [bare(mechanism, 3, size)]).link_bytes["worker0"][1]
    assert received == (frames * FRAME_BYTES or size)


@pytest.mark.parametrize(
    ("mechanism", "workers", "chunks", "prologues"),
    # 250 elements less 2 words tell of 49 blocks of 5 words each with 2 ranks, of 24 blocks of 10 words with 8.
    [
        ("inagg+mcast", 2, 60, 2),
        ("inagg", 8, 60, 3),
        ("inagg+mcast", 8, 6, 1),
        ("inagg+mcast", 8, 400, 3),
        ("mcast", 8, 60, 0),
    ],
)
def test_prologues_take_frames(mechanism: str, workers: int, chunks: int, prologues: int) -> None:
    """Those of a window's blocks, whether or not the tensor is played in parts."""
    network = Network(
        RATE_BITS_S,
        topology=star(workers, 1, RATE_BITS_S, 0),
        frame_bytes=FRAME_BYTES,
        slot_bytes=FRAME_BYTES,
        slots=64,
    )
    job = bare(mechanism, workers, chunks * FRAME_BYTES)
    for each in (job, replace(job, workload=in_parts(job.workload, 5, FRAME_BYTES))):
        received = play(network, [each]).link_bytes["worker0"][1]
        assert received == (chunks + prologues) * FRAME_BYTES
