"""Racks with one uplink or several: sums at the leaves, and hosts' streams spread over equal uplinks by a hash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emulation.networks.limits import require_realisable
from hostlib.mechanisms.mechanism import find
from hostlib.protocol.framing import PHYSICAL
from hostlib.protocol.slots import SLOTS_PER_POOL, slots_of_stream
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.topology import Cable, Topology, TopologyError
from simulation.experiments.scenario import PAPERS, Scenario
from simulation.experiments.single_iteration import declaration_of
from simulation.models.workload_source import bare
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Played, play
from simulation.simulator.workload import Variation, of_size

MEGABYTE = 10**6
GIGABIT = 1e9
LEAVES = tuple(f"leaf{n}" for n in range(4))


def played(mechanism: str, topology: Topology, seed: int = 1) -> Played:
    job = Job(of_size(MEGABYTE), find(mechanism), topology.workers, bare=True, variation=Variation(seed=seed))
    return play(Network(GIGABIT, topology=topology), [job])


def test_chunks_do_not_come_back_to_their_rack_and_receivers_ask_for_more() -> None:
    """Emulated leaves and hosts carry as much: docs/protocol.md, "A stream of chunks"."""
    workers, racks, size = 6, 3, 6 * (32 << 20)
    share, chunks = size // workers, slots_of_stream(workers) // 2
    values, frame = PHYSICAL.slot_frame()
    asks = (frame - values + 12) / frame / chunks  # with 12 bytes, for each byte of so many chunks
    network = Network(GIGABIT, racks=racks, slots=SLOTS_PER_POOL)
    link_bytes = Scenario(bare(size), "ring+mcast", workers, network).play().link_bytes
    ring, others, far = (workers - 1) * share, workers - 1, workers - workers // racks
    for n in range(workers):
        # Each asks the source of every share for more, and all others ask it.
        wanted = ring + share * (1 + others * asks), ring + others * share * (1 + asks)
        assert link_bytes[f"worker{n}"] == pytest.approx(wanted, rel=1e-6)
    per_rack = workers // racks
    asked = far * per_rack * share * asks
    for n in range(racks):
        wanted = ring + per_rack * share + asked, ring + far * share + asked
        assert link_bytes[f"leaf{n}"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("semantics", ["runtime", "papers"])
def test_racks_are_found_and_sum_at_their_leaves(semantics: str) -> None:
    """The mechanism's option `racks` is not needed."""
    size = 1 << 20  # whole packets
    scenario = Scenario(bare(size), "inagg+mcast", 16, Network(GIGABIT, racks=4))
    if semantics == "papers":
        scenario = replace(scenario, semantics=PAPERS)
    link_bytes = scenario.play().link_bytes
    # Six prologues of 23 blocks each come before the first 128 chunks; the papers have none.
    carried = size + 6 * 1024 * (semantics == "runtime")
    for name in LEAVES:  # one tensor for each rack, whatever it has of workers
        assert link_bytes[name] == (carried, carried)
    assert all(link_bytes[f"worker{n}"] == (carried, carried) for n in range(16))


def test_a_leafs_uplinks_share_its_rate() -> None:
    several = leaf_spine(16, 4, 2, GIGABIT, 2.0, spines=4)
    cable = several.above("leaf0")
    assert cable is not None and (cable.rate_bits_s, cable.parallel) == (GIGABIT * 4 / 2 / 4, 4)
    assert [several.switch_of(f"server{n}") for n in range(2)] == ["leaf0", "leaf1"]
    one = leaf_spine(16, 4, 2, GIGABIT, 2.0).above("leaf0")
    assert one is not None and (one.rate_bits_s, one.parallel) == (GIGABIT * 2, 1)
    assert "parallel" not in one.as_json() and cable.as_json()["parallel"] == 4


def test_streams_between_hosts_stay_on_one_uplink_and_sums_on_the_first() -> None:
    topology = leaf_spine(16, 4, 0, GIGABIT, spines=4)
    uplinks = {leaf: [leaf, *(f"{leaf}.{n}" for n in range(1, 4))] for leaf in LEAVES}
    summed = played("inagg+mcast", topology).link_bytes
    for names in uplinks.values():
        assert [summed[name] for name in names] == [(MEGABYTE, MEGABYTE), (0, 0), (0, 0), (0, 0)]
    # A ring crosses between racks in one stream each way: all of it on one uplink.
    ring = played("ring", topology).link_bytes
    alone = played("ring", leaf_spine(16, 4, 0, GIGABIT)).link_bytes
    for leaf, names in uplinks.items():
        assert sum(ring[name][0] > 0 for name in names) == sum(ring[name][1] > 0 for name in names) == 1
        assert tuple(map(sum, zip(*(ring[name] for name in names), strict=True))) == alone[leaf]


def test_many_streams_are_spread_by_the_seed() -> None:
    topology = leaf_spine(16, 4, 0, GIGABIT, spines=2)
    one_s = played("butterfly", leaf_spine(16, 4, 0, GIGABIT)).outcomes[0].iteration_s
    times = set()
    shares = []
    for seed in range(1, 9):
        found = played("butterfly", topology, seed)
        times.add(found.outcomes[0].iteration_s)
        shares += [found.link_bytes[leaf][0] / MEGABYTE for leaf in LEAVES]
        assert all(found.link_bytes[leaf][0] + found.link_bytes[f"{leaf}.1"][0] == 8 * MEGABYTE for leaf in LEAVES)
    assert sum(shares) / len(shares) == pytest.approx(4, abs=0.6), "half of eight streams each, on average"
    assert min(times) >= one_s - 1e-9 and max(times) > 1.3 * one_s, "a hash is no faster than an even spread"
    again = played("butterfly", topology, 3)
    assert again.link_bytes == played("butterfly", topology, 3).link_bytes


def test_what_has_several_uplinks_is_not_emulated() -> None:
    with pytest.raises(TopologyError, match=r"^leaf0 has 4 uplinks, which can be simulated, but not emulated"):
        require_realisable(leaf_spine(16, 4, spines=4))
    with pytest.raises(TopologyError, match=r"^spines must be 1 to 256, not 0"):
        leaf_spine(16, 4, spines=0)
    with pytest.raises(TopologyError, match=r"a host has one cable, not 2"):
        Topology(1, 0, ("switch",), (Cable("worker0", "switch", parallel=2),))


def test_a_declared_network_is_made_for_the_hosts_that_are_played(tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text('[topology]\nkind = "leaf-spine"\nleaves = 4\noversubscription = 2\ndelay = "500ns"\n')
    declared = Network(GIGABIT, declaration=declaration_of(path))
    racks = Network(GIGABIT, latency_ns=1000, racks=4, oversubscription=2.0)
    for mechanism in ("ring", "ps:servers=2", "inagg+mcast"):
        made = [Scenario(bare(MEGABYTE), mechanism, 8, network) for network in (declared, racks)]
        assert made[0].topology() == made[1].topology()
        assert made[0].play().outcomes == made[1].play().outcomes
    path.write_text('[topology]\nkind = "star"\nloss = 0.01\n')
    lossy = Scenario(bare(), "inagg+mcast", 4, Network(GIGABIT, declaration=declaration_of(path)))
    path.write_text('[topology]\nkind = "star"\n')
    lossless = replace(lossy, network=Network(GIGABIT, declaration=declaration_of(path)))
    assert lossy.play().outcomes[0].iteration_s > lossless.play().outcomes[0].iteration_s
    path.write_text("seed = 3\n[cells]\nmodels = []\n")
    with pytest.raises(TopologyError, match=r"network.toml has no table \[topology\]$"):
        declaration_of(path)
