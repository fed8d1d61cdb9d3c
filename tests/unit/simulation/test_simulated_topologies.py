"""Trees of cables with rates of their own, played: against what can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostlib.mechanisms.mechanism import find, registered
from hostlib.schedules.checker import check
from hostlib.schedules.contract import Collective
from hostlib.schedules.hierarchy import spread
from hostlib.schedules.schedule import Aggregate, Multicast, Receive, Send
from hostlib.topology.builtin.star import star
from hostlib.topology.topology import Cable, Topology
from simulation.errors import NetworkError
from simulation.experiments.experiment_file import read_experiment
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Played, only, play
from simulation.simulator.workload import of_size
from tests.unit.simulation.simulated import simulated_s

MEGABYTE = 10**6
GIGABIT, MS = 1e9, 10**6  # a megabyte takes 8 ms on a gigabit link


def tree(pod_bits_s: float = GIGABIT, slow_bits_s: float = GIGABIT, delay_ns: int = 0) -> Topology:
    """core - (pod0 - worker0, worker1), (pod1 - rack - worker2), server0"""
    cables = [
        ("pod0", "core", pod_bits_s), ("pod1", "core", pod_bits_s), ("rack", "pod1", pod_bits_s),
        ("worker0", "pod0", GIGABIT), ("worker1", "pod0", slow_bits_s), ("worker2", "rack", GIGABIT),
        ("server0", "core", GIGABIT),
    ]  # fmt: skip
    return Topology(3, 1, ("core", "pod0", "pod1", "rack"), tuple(Cable(*each, delay_ns) for each in cables))


def played(mechanism: str, topology: Topology, workers: int = 3, jobs: int = 1, **options: int) -> Played:
    job = Job(of_size(MEGABYTE), find(mechanism), workers, bare=True)
    return play(Network(GIGABIT, topology=topology, **options), [job] * jobs, apart=True)


def end_ms(*arguments: object, **options: int) -> float:
    return played(*arguments, **options).outcomes[0].iteration_end_ns[1] / MS  # type: ignore[arg-type]


def test_a_star_that_is_declared_is_the_star_that_there_was() -> None:
    for mechanism in ("ring", "ps", "inagg+mcast", "mcast", "tree"):
        job = Job(of_size(MEGABYTE), find(mechanism), 4, bare=True, reduce=False)
        plain = play(Network(GIGABIT, latency_ns=700), [job])
        declared = play(Network(GIGABIT, topology=star(4, 1, GIGABIT, 350)), [job])
        assert declared.outcomes == plain.outcomes, mechanism


def test_the_slowest_cable_is_what_a_sum_takes() -> None:
    # Up and down at once, cut through: a tensor's time on the slowest cable.
    assert end_ms("inagg+mcast", tree()) == pytest.approx(8)
    assert end_ms("inagg+mcast", tree(slow_bits_s=GIGABIT / 4)) == pytest.approx(32)
    assert end_ms("inagg+mcast", tree(pod_bits_s=GIGABIT / 2)) == pytest.approx(16)
    assert end_ms("inagg+mcast", tree(pod_bits_s=10 * GIGABIT)) == pytest.approx(8)


def test_delays_and_stored_frames_add_up_along_the_longest_way() -> None:
    # worker2 is three cables from the core, so the sum takes six; five of them end in a switch.
    assert end_ms("inagg+mcast", tree(delay_ns=MS)) == pytest.approx(8 + 6)
    assert end_ms("inagg+mcast", tree(), frame_bytes=12_500, slot_bytes=12_500) == pytest.approx(8 + 5 * 0.1)


def test_each_cable_carries_a_sum_once_each_way() -> None:
    carried = played("inagg+mcast", tree()).link_bytes
    assert {name: carried[name] for name in carried if name != "server0"} == dict.fromkeys(
        ("pod0", "pod1", "rack", "worker0", "worker1", "worker2"), (MEGABYTE, MEGABYTE)
    )


def test_messages_share_the_cables_that_they_meet_on() -> None:
    # All three to the server and back, on its one cable.
    assert end_ms("ps", tree()) == pytest.approx(6 * 8, rel=0.02)
    # Two of them leave pod0 by an uplink of a quarter.
    job_bytes = played("ps", tree(pod_bits_s=GIGABIT / 4)).link_bytes
    assert job_bytes["pod0"] == (2 * MEGABYTE, 2 * MEGABYTE)
    assert job_bytes["server0"] == (3 * MEGABYTE, 3 * MEGABYTE)


def test_jobs_are_dealt_out_over_the_same_tree() -> None:
    hosts = [Cable(f"worker{n}", f"s{n % 3}", GIGABIT) for n in range(4)]
    made = Topology(4, 0, ("s0", "s1", "s2"), (Cable("s1", "s0", GIGABIT), Cable("s2", "s0", GIGABIT), *hosts))
    # Workers 0 and 2 of the one, 1 and 3 of the other: their trees share no cable.
    assert [outcome.iteration_end_ns[1] / MS for outcome in played("inagg+mcast", made, 2, 2).outcomes] == [8, 8]
    with pytest.raises(
        NetworkError, match="5 workers and 0 servers are more than the topology has hosts for: 4 workers"
    ):
        played("inagg+mcast", made, 5)


def test_a_spread_schedule_is_still_an_all_reduce() -> None:
    made = tree()
    switch_of = {f"worker{n}": made.switch_of(f"worker{n}") for n in range(3)}
    for mechanism in ("inagg+mcast", "inagg+mcast:via_server", "inagg", "mcast"):
        check(spread(find(mechanism).schedule(3, MEGABYTE), made.tree, switch_of))
    schedule = spread(find("inagg+mcast").schedule(3), made.tree, switch_of)
    assert schedule.nodes["pod1"] == (
        Aggregate(("rack",), 0), Send("core", 0), Receive("core", 0, False), Multicast(("rack",), 0)
    )  # fmt: skip
    # Two workers of pod0 alone meet there.
    alone = spread(find("inagg+mcast").schedule(2), made.tree, switch_of)
    assert set(alone.nodes) == {"worker0", "worker1", "pod0"}


def test_what_switches_sum_for_one_worker_goes_there_from_where_all_others_meet() -> None:
    """A leaf sends up the sum of its workers but the shard's owner, and nothing if that is its only one."""
    made = tree()
    switch_of = {f"worker{n}": made.switch_of(f"worker{n}") for n in range(3)}
    for collective in (Collective.REDUCE_SCATTER, Collective.REDUCE, Collective.ALL_GATHER, Collective.BROADCAST):
        check(spread(find("inagg+mcast").of(collective).schedule(3, MEGABYTE), made.tree, switch_of))
    schedule = spread(find("inagg+mcast").of(Collective.REDUCE_SCATTER).schedule(3), made.tree, switch_of)
    assert schedule.nodes["pod1"] == tuple(
        operation for piece in (0, 1) for operation in (Aggregate(("rack",), piece), Send("core", piece))
    )
    assert schedule.nodes["core"][:2] == (Aggregate(("pod0", "pod1"), 0), Send("worker0", 0))
    assert schedule.nodes["worker2"][-1] == Receive("core", 2, True)


def test_an_experiment_on_a_tree_of_its_own_is_simulated(tmp_path: Path) -> None:
    file = tmp_path / "tree.toml"
    text = """
[cells]
models = ["lenet"]
mechanisms = ["inagg+mcast", "ring"]
bandwidths = ["100mbit"]
workers = [3]
[topology]
kind = "custom"
switches = ["core", "pod"]
[[topology.links]]
lower = "pod"
upper = "core"
rate = RATE
[[topology.links]]
lower = ["worker0", "worker1"]
upper = "pod"
[[topology.links]]
lower = "worker2"
upper = "core"
"""
    seconds = {}
    for rate in ("1", "0.1"):
        file.write_text(text.replace("RATE", rate))
        experiment = read_experiment(file)
        seconds[rate] = [simulated_s(experiment, cell) for cell in experiment.cells]
    for fast, slow in zip(seconds["1"], seconds["0.1"], strict=True):
        assert fast is not None and slow is not None and slow > 2 * fast


def test_a_leaf_spine_network_is_the_same_tree_declared_link_by_link(tmp_path: Path) -> None:
    """For every mechanism with a schedule: sums at both levels, and what goes through a server."""
    playable = [name for name, each in registered().items() if each.build is not None]
    cells = f"""
[cells]
models = ["lenet"]
bandwidths = ["100mbit"]
workers = [5]
mechanisms = {[*playable, "inagg+mcast:via_server", "ps:servers=2"]}
[topology]
"""
    leaf_spine = """
kind = "leaf-spine"
leaves = 2
oversubscription = 2
delay = "10us"
"""
    declared = """
kind = "custom"
delay = "10us"
switches = ["spine", "leaf0", "leaf1"]
links = [
    {lower = ["leaf0", "leaf1"], upper = "spine", rate = 1.5},
    {lower = ["worker0", "worker1", "worker2"], upper = "leaf0"},
    {lower = ["worker3", "worker4"], upper = "leaf1"},
    {lower = ["server0", "server1"], upper = "spine"},
]
"""
    predicted = []
    for number, table in enumerate((leaf_spine, declared)):
        file = tmp_path / f"{number}.toml"
        file.write_text(cells + table)
        experiment = read_experiment(file)
        predicted.append({cell.mechanism: simulated_s(experiment, cell) for cell in experiment.cells})
    assert predicted[0] == predicted[1]
    assert None not in predicted[0].values()


def test_sums_are_taken_on_every_leaf_whatever_the_mechanism() -> None:
    network = Network(1e9, racks=2)
    for mechanism, sent in (("inagg+mcast", 1), ("inagg", 1), ("ps", 2)):
        _, done = only(network, Job(of_size(MEGABYTE), find(mechanism), 4, bare=True))
        # The server is in the first rack: what the second one sends to the spine is its sum, or both workers' own.
        assert done.link_bytes["leaf1"][0] == sent * MEGABYTE, mechanism
