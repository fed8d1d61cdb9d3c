"""Every collective of every mechanism, simulated: against what can be worked out on paper, and against a plain player."""

from __future__ import annotations

import numpy as np
import pytest

import netfold
from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import is_host, link_elements
from simulation.errors import SimulationError
from simulation.simulator.network import Network
from simulation.simulator.play import Job, only
from simulation.simulator.workload import Tensor, Workload, of_size
from tests.unit.simulation.plain_player import PlainPlayer

MS = 1_000_000
RATE = 1e9
SIZE = 4 * 8 * 8 * 3 * 3 * 1000  # whose pieces are whole elements
DONE = [(name, collective) for name, m in registered().items() if m.build is not None for collective in m.collectives]


@pytest.mark.parametrize(("name", "collective"), DONE, ids=str)
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_links_carry_the_schedule_in_the_plain_players_time(name: str, collective: Collective, workers: int) -> None:
    schedule = find(name).of(collective).schedule(workers, size=SIZE)
    size = collective.tensor_bytes(SIZE, workers)
    outcome, played = only(Network(RATE), Job(of_size(size), find(name).of(collective), workers, bare=True))
    carried = {node: (s // 4, r // 4) for node, (s, r) in played.link_bytes.items() if is_host(node)}
    assert carried == link_elements(schedule, size // 4)
    plain = PlainPlayer(schedule, size, RATE, False).play()
    # Pieces of a tree's broadcast may reach a link at the same time, and either may go first.
    tied = (name, collective) == ("tree", Collective.BROADCAST)
    assert outcome.iteration_end_ns[1] == pytest.approx(plain, rel=0.05 if tied else 1e-6)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_times_worked_out_on_paper(n: int) -> None:
    """In times of one tensor over one link; frames and pieces cost less than 5 %."""
    part = (n - 1) / n
    wanted = {
        ("ring", "reduce_scatter"): part,
        ("ring", "all_gather"): part,
        ("ring", "all_reduce"): 2 * part,
        ("ring", "broadcast"): 1 + (n - 2) / (4 * n),
        ("ring", "reduce"): 1 + (n - 2) / (4 * n),
        ("ring", "all_to_all"): (n - 1) / 2,
        ("halving-doubling", "reduce_scatter"): part,
        ("halving-doubling", "all_gather"): part,
        ("butterfly", "all_to_all"): part,
        ("ps", "reduce_scatter"): n + 1 / n,
        ("ps", "broadcast"): n,
        ("mcast", "broadcast"): 1,
        ("inagg+mcast", "reduce_scatter"): part,
        ("inagg+mcast", "reduce"): 1,
    }
    for (name, collective), times in wanted.items():
        found = netfold.predict(None, name, n, "1gbit", size="5MiB", collective=collective, headers=False)
        # The broadcast of ps: its server sends to n - 1, after it has received.
        assert found.iteration_s / (5 * 2**20 * 8 / RATE) == pytest.approx(times, rel=0.05), (name, collective)


def test_reduce_scatter_and_all_gather_load_a_link_one_way_each() -> None:
    """Through the fabric; a ring has both ways of both."""
    up, down = (
        netfold.predict(None, "inagg+mcast", 8, "1gbit", size="8MiB", collective=each, headers=False).bytes_per_link
        for each in ("reduce_scatter", "all_gather")
    )
    for rank in range(8):
        both = [up[f"worker{rank}"][way] + down[f"worker{rank}"][way] for way in ("sent", "received")]
        assert both == pytest.approx([8 * 2**20] * 2, rel=0.07)  # requests for chunks come on top


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(
        netfold.ScheduleError, match=r"tree does no all_gather; legal are all_reduce, reduce, broadcast"
    ):
        netfold.predict(None, "tree", collective="all_gather")
    with pytest.raises(netfold.UnknownNameError, match="unknown collective 'gather'; legal are all_gather, all_reduce"):
        netfold.predict(None, "ring", collective="gather")
    with pytest.raises(SimulationError, match="--collective broadcast is of a bare tensor: --size is legal beside it"):
        netfold.predict("lenet", "ring", collective="broadcast")


def test_chunks_overtake_the_sums_that_wait_at_their_host() -> None:
    """As SO_PRIORITY has it: hosts wait for gathered weights, and for sums only at the end."""
    tensors = (
        Tensor("sums", 12 * 10**6, 0, 0, 0, collective=Collective.REDUCE_SCATTER),
        Tensor("weights", 4 * 10**6, 1, 0, 1, collective=Collective.ALL_GATHER),
    )
    # Sums leave from 2 ms on, three messages of 3 ms; weights are asked for at 3 ms, a message of 1 ms.
    steps = np.array([[MS, MS, MS]], np.int64)
    work = Workload(tensors, np.array([MS], np.int64), steps, ((0,), (), ()), gathers=((1, 3, 3),))
    outcome, _ = only(Network(8e9, turn_bytes=10**6), Job(work, find("inagg+mcast"), 4, bare=True))
    sums_ns, weights_ns = outcome.delivered_ns[1]
    # They leave behind the first message. A rank gets three of them, and its sum at the latest behind those.
    assert (2 + 3 + 3) * MS <= weights_ns <= (2 + 3 + 3 + 3) * MS
    assert sums_ns == (2 + 3 * 3 + 1) * MS
