"""What lost frames cost, against what can be worked out on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostlib.mechanisms.mechanism import find
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Topology
from simulation.simulator.loss import rounds, tcp_window
from simulation.simulator.network import Network
from simulation.simulator.play import Job, only
from simulation.simulator.workload import Variation, of_size

RATE_BITS_S = 1e9
TIMEOUT_NS = 10_000_000


def test_without_loss_everything_is_sent_once() -> None:
    assert rounds(star(8, 0, RATE_BITS_S).cables) == 1
    assert tcp_window(star(8, 0, RATE_BITS_S), 1448) == float("inf")


def test_a_position_is_sent_again_if_any_of_its_packets_is_lost() -> None:
    network = star(8, 0, RATE_BITS_S, loss=0.01)
    again = 1 - 0.99**16
    assert rounds(network.cables) == pytest.approx(1 + again + again**2)
    # Two more cables, between the switches.
    assert rounds(leaf_spine(8, 2, 0, RATE_BITS_S, loss=0.01).cables) > rounds(network.cables)


def test_tcps_window_is_smaller_the_more_is_lost_and_the_farther_hosts_are() -> None:
    def window(topology: Topology) -> float:
        return tcp_window(topology, 1000)

    assert window(star(4, 0, RATE_BITS_S, loss=0.01)) == pytest.approx(1000 * (1.5 / (1 - 0.99**2)) ** 0.5)
    assert window(leaf_spine(4, 2, 0, RATE_BITS_S, loss=0.01)) == pytest.approx(1000 * (1.5 / (1 - 0.99**4)) ** 0.5)


def test_the_last_frame_of_a_message_waits_for_the_timeout_if_it_is_lost() -> None:
    """Two workers send each other halves, twice: as often as a half's last frame is lost, one timeout is waited for."""
    network = Network(RATE_BITS_S, turn_bytes=100_000, window_bytes=1_000_000, timeout_ns=TIMEOUT_NS)
    job = Job(of_size(1_000_000), find("ring"), 2, bare=True)
    plain_ns = only(network, job)[0].iteration_s * 1e9
    loss = 0.3
    lossy = replace(network, topology=star(2, 0, RATE_BITS_S, loss=loss))
    waits = []
    for seed in range(400):
        taken_ns = only(lossy, replace(job, variation=Variation(seed=seed)))[0].iteration_s * 1e9 - plain_ns
        waits.append(round(taken_ns / TIMEOUT_NS))
        assert taken_ns == pytest.approx(waits[-1] * TIMEOUT_NS, abs=1)
    assert set(waits) == {0, 1, 2}
    lost = 1 - (1 - loss) ** 2
    # Each worker's iteration has two halves of its own one after the other; the slower of two workers counts.
    none = (1 - lost) ** 4
    assert waits.count(0) / len(waits) == pytest.approx(none, abs=0.06)


def test_a_seed_decides_what_is_lost() -> None:
    network = Network(
        RATE_BITS_S,
        topology=star(4, 0, RATE_BITS_S, loss=0.2),
        turn_bytes=1000,
        window_bytes=10_000,
        timeout_ns=TIMEOUT_NS,
    )
    job = Job(of_size(100_000), find("ring"), 4, bare=True)
    times = [only(network, replace(job, variation=Variation(seed=seed)))[0].iteration_s for seed in (1, 1, 2, 3, 4)]
    assert times[0] == times[1]
    assert len(set(times)) > 1
