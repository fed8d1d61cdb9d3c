"""Jobs, leases and what they share, on a fabric that is a list in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from controller.errors import ControllerError, RequestError, SwitchError
from controller.jobs.allocation import NumberPool, SlotPool
from controller.jobs.job import Job, Joining
from controller.jobs.job_table import LEASE_S, SHORTEST_LEASE_S, JobTable
from controller.jobs.split_by_switch import levels, shares
from controller.topology import LEAF_RANK, Switch, Topology, single
from hostlib.fabric.job_client import HEARTBEAT_S
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL


@dataclass
class MemoryFabric:
    """Which jobs have entries; refuses when told to."""

    installed: list[str] = field(default_factory=list)
    refuses: bool = False

    def install(self, job: Job) -> None:
        if self.refuses:
            raise SwitchError("the switch refused a write: no memory")
        self.installed.append(job.name)

    def remove(self, job: Job) -> None:
        if self.refuses:
            raise SwitchError("the switch is gone")
        self.installed.remove(job.name)


@dataclass
class Clock:
    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class World:
    """A job table and everything around it."""

    ports: int = 8
    topology: Topology | None = None
    fabric: MemoryFabric = field(default_factory=MemoryFabric)
    clock: Clock = field(default_factory=Clock)
    now: Clock = field(default_factory=lambda: Clock(1_700_000_000.0))

    def __post_init__(self) -> None:
        ports = {port: "127.0.0.1:1" for port in range(1, self.ports + 1)}
        topology = self.topology or single("127.0.0.1:2", 1, "10.255.255.254", ports)
        self.table = JobTable(self.fabric, topology, self.clock, self.now)

    def join(self, rank: int, world_size: int = 2, name: str = "demo", policy: str = "sum", pools: int = 1) -> Job:
        """Rank RANK_ALL is the server."""
        udp_ports = tuple(5000 + rank % 1000 + 1000 * pool for pool in range(pools))
        nonce = f"{rank:032x}"
        return self.table.join(name, Joining(rank, world_size, "127.0.0.1", udp_ports, policy=policy, nonce=nonce))


@pytest.fixture
def world() -> World:
    return World()


def test_the_last_rank_makes_the_job_ready(world: World) -> None:
    assert world.join(0).state == "waiting"
    assert world.fabric.installed == []
    job = world.join(1)
    assert job.state == "ready"
    assert world.fabric.installed == ["demo"]
    assert [(pool.first_slot, pool.slots) for pool in job.pools] == [(0, SLOTS_PER_POOL)]
    assert job.job_id != 0
    assert len({rank.switch_port for rank in job.ranks.values()}) == 2
    replicas = {replica for rank in job.ranks.values() for replica in rank.replicas}
    assert len(replicas) == 2 and 0 not in replicas


def test_a_world_of_one_is_ready_at_once(world: World) -> None:
    assert world.join(0, world_size=1).state == "ready"


def test_joining_again_changes_nothing(world: World) -> None:
    world.join(0)
    before = json.dumps(world.table.dump())
    world.join(0)
    assert json.dumps(world.table.dump()) == before


@pytest.mark.parametrize(
    ("rank", "world_size", "says"),
    [
        (0, 0, "world size 0 is not in"),
        (0, 33, "world size 33 is not in 1..32: one switch sums 32 ranks, more need a tree"),
        (2, 2, "rank 2 is not in 0..1"),
        (-1, 2, "rank -1 is not in 0..1"),
    ],
)
def test_impossible_numbers_are_refused(world: World, rank: int, world_size: int, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        world.join(rank, world_size)
    assert refused.value.status == 422
    assert world.table.jobs == {}


def test_a_chip_sums_one_rank_less() -> None:
    world = World(
        topology=single("127.0.0.1:2", 1, "10.255.255.254", {port: "127.0.0.1:1" for port in range(1, 33)}, "tofino")
    )
    with pytest.raises(RequestError, match=r"world size 32 is not in 1..31: one switch sums 31 ranks"):
        world.join(0, 32)
    world.join(0, 31)


def test_ranks_on_one_chip_of_a_tree_are_counted() -> None:
    """32 on a leaf, which one of the other kind would sum."""
    ports = {port: "127.0.0.1:1" for port in range(1, 33)}
    root = Switch("root", "127.0.0.1:2", 1, "10.255.255.254", {})
    leaf = Switch("leaf", "127.0.0.1:3", 1, "10.255.255.253", ports, "root", 100, 1, target="tofino")
    world = World(topology=Topology((root, leaf)))
    with pytest.raises(RequestError, match="32 ranks on leaf: it sums 31; more need a tree"):
        world.join(0, 32)
    with pytest.raises(RequestError, match=r"world size 32 is not in 2..31, the ranks of policy peers"):
        world.join(0, 32, policy="peers", pools=32)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ControllerError, match="switch has the target 'fpga'; there are v1model, tofino, tofino2"):
        single("127.0.0.1:2", 1, "10.255.255.254", {}, "fpga")


def test_another_world_size_is_refused(world: World) -> None:
    world.join(0, world_size=2)
    with pytest.raises(RequestError, match="has world size 2; rank 1 came with 3") as refused:
        world.join(1, world_size=3)
    assert refused.value.status == 409


def test_a_rank_cannot_be_taken_over_from_another_address(world: World) -> None:
    world.join(0)
    world.join(1)
    with pytest.raises(RequestError, match="already joined") as refused:
        world.table.join("demo", Joining(1, 2, "127.0.0.1", (9999,)))
    assert refused.value.status == 409
    assert world.table.jobs["demo"].ranks[1].udp_ports == [5001]


def test_without_a_port_nothing_is_left_half_joined() -> None:
    world = World(ports=3)
    with pytest.raises(RequestError, match="job demo needs 4 switch ports; the fabric has 3") as refused:
        world.join(0, 4)
    assert (refused.value.status, world.table.jobs) == (422, {})
    world.join(0)
    with pytest.raises(RequestError, match="job other needs 2 switch ports; free: 1: wait") as refused:
        world.join(0, name="other")
    assert refused.value.status == 503
    assert list(world.table.jobs) == ["demo"]
    assert world.join(1).state == "ready" and world.join(0, 1, "small").state == "ready"


def test_slots_run_out_and_come_back() -> None:
    fitting = constants.SLOTS // SLOTS_PER_POOL
    world = World(ports=fitting + 1)
    jobs = [world.join(0, 1, f"job{n}") for n in range(fitting)]
    assert sorted(job.pools[0].first_slot for job in jobs) == list(range(0, constants.SLOTS, SLOTS_PER_POOL))
    with pytest.raises(RequestError, match=f"{SLOTS_PER_POOL} slots are needed, and 0 of {constants.SLOTS}") as refused:
        world.join(0, 1, "one too many")
    assert refused.value.status == 503
    world.table.leave("job1", 0)
    assert world.join(0, 1, "next").pools[0].first_slot == jobs[1].pools[0].first_slot


def test_a_refused_installation_leaves_the_others_waiting(world: World) -> None:
    world.join(0)
    world.fabric.refuses = True
    with pytest.raises(SwitchError):
        world.join(1)
    job = world.table.jobs["demo"]
    assert (job.state, list(job.ranks)) == ("waiting", [0])
    world.fabric.refuses = False
    assert world.join(1).state == "ready"


def test_a_refused_installation_of_a_new_job_leaves_no_job(world: World) -> None:
    world.fabric.refuses = True
    with pytest.raises(SwitchError):
        world.join(0, world_size=1)
    assert world.table.jobs == {}
    world.fabric.refuses = False
    assert world.join(0, world_size=1).pools[0].first_slot == 0


def test_the_last_to_leave_takes_the_entries_along(world: World) -> None:
    world.join(0)
    world.join(1)
    world.table.leave("demo", 0)
    assert world.fabric.installed == ["demo"]
    world.table.leave("demo", 1)
    assert (world.fabric.installed, world.table.jobs) == ([], {})


def test_who_leaves_while_waiting_makes_room(world: World) -> None:
    world.join(0)
    world.join(1, world_size=3, name="third")
    world.table.leave("demo", 0)
    assert list(world.table.jobs) == ["third"]
    assert world.join(0, world_size=5).world_size == 5


@pytest.mark.parametrize(("name", "rank", "says"), [("other", 0, "no job other; jobs: demo"), ("demo", 1, "rank 1")])
def test_the_unknown_is_named(world: World, name: str, rank: int, says: str) -> None:
    world.join(0)
    with pytest.raises(RequestError, match=says) as refused:
        world.table.leave(name, rank)
    assert refused.value.status == 404


def test_a_silent_rank_is_lost_and_found_again(world: World) -> None:
    world.join(0)
    job = world.join(1)
    world.clock.seconds += LEASE_S - 1
    world.table.heartbeat("demo", 0, 77)
    world.clock.seconds += 2
    world.table.expire()
    assert [job.ranks[rank].state for rank in (0, 1)] == ["joined", "lost"]
    assert job.ranks[0].position == 77
    world.table.heartbeat("demo", 1, 80)
    assert job.ranks[1].state == "joined"


def test_a_lease_may_last_longer(world: World) -> None:
    world.table = JobTable(world.fabric, world.table._topology, world.clock, world.now, lease_s=3 * LEASE_S)
    job = world.join(0, world_size=1)
    world.clock.seconds += 3 * LEASE_S - 1
    world.table.expire()
    assert world.table.jobs == {"demo": job}
    world.clock.seconds += 2
    world.table.expire()
    assert world.table.jobs == {}


def test_the_shortest_lease_outlasts_two_lost_heartbeats() -> None:
    assert SHORTEST_LEASE_S >= 3 * HEARTBEAT_S


def test_a_job_that_all_have_lost_ends(world: World) -> None:
    world.join(0)
    world.join(1)
    world.table.leave("demo", 0)
    world.clock.seconds += LEASE_S + 1
    world.table.expire()
    assert (world.fabric.installed, world.table.jobs) == ([], {})


def test_a_job_ends_although_the_switch_is_gone(world: World) -> None:
    world.join(0, world_size=1)
    world.fabric.refuses = True
    with pytest.raises(SwitchError):
        world.table.leave("demo", 0)
    assert world.table.jobs == {}


def test_epochs_only_grow(world: World) -> None:
    """Also within a second, and when the wall clock is set back: no (slot, epoch) is ever seen twice."""
    first = world.join(0, 1, "first").epoch
    assert first == int(world.now.seconds)
    second = world.join(0, 1, "second").epoch
    world.now.seconds -= 3600
    third = world.join(0, 1, "third").epoch
    assert first < second < third


def test_a_refused_join_uses_up_no_epoch(world: World) -> None:
    first = world.join(0, 8, "first").epoch
    for _ in range(3):
        with pytest.raises(RequestError, match="job second needs 1 switch ports; free: 0"):
            world.join(0, 1, "second")
    world.table.end("first")
    assert world.join(0, 1, "second").epoch == first + 1


def test_a_restarted_controller_takes_the_jobs_over(world: World) -> None:
    world.join(0)
    world.join(1)
    world.join(0, 3, "waiting")
    dumped = json.loads(json.dumps(world.table.dump()))

    later = World(fabric=world.fabric, clock=Clock(5.0), now=Clock(0.0))
    later.table.restore(dumped)
    assert later.table.jobs["demo"].state == "ready"
    assert later.table.jobs["demo"].secret == world.table.jobs["demo"].secret
    assert world.fabric.installed == ["demo"]
    later.table.expire()
    assert all(rank.state == "joined" for rank in later.table.jobs["demo"].ranks.values())

    fresh = later.join(0, 1, "fresh")
    taken = [job for name, job in later.table.jobs.items() if name != "fresh"]
    assert fresh.pools[0].first_slot not in {job.pools[0].first_slot for job in taken}
    assert fresh.job_id not in {job.job_id for job in taken}
    assert fresh.epoch > max(job.epoch for job in taken)
    ports = [rank.switch_port for job in later.table.jobs.values() for rank in job.ranks.values()]
    replicas = [n for job in later.table.jobs.values() for rank in job.ranks.values() for n in rank.replicas]
    assert len(set(ports)) == len(ports)
    assert len(set(replicas)) == len(replicas)
    later.table.leave("demo", 0)
    later.table.leave("demo", 1)
    assert "demo" not in world.fabric.installed


# ---- trees, servers and pools ----


def tree(leaves: int = 4, ports: int = 2) -> Topology:
    root = Switch("root", "127.0.0.1:100", 1, "10.0.0.100", {1: "127.0.0.1:1"})
    below = [
        Switch(
            f"leaf{n}", f"127.0.0.1:{n + 1}", 1, f"10.0.0.{n + 1}", dict.fromkeys(range(1, ports + 1), "127.0.0.1:1")
        )
        for n in range(leaves)
    ]
    return Topology((root, *(replace(leaf, parent="root", uplink=50, downlink=60 + n) for n, leaf in enumerate(below))))


def test_ranks_fill_the_leaves_and_leaves_are_ranks_of_the_root() -> None:
    topology = tree()
    world = World(topology=topology)
    job = [world.join(rank, 8) for rank in range(8)][-1]
    assert [job.ranks[rank].switch for rank in range(8)] == [f"leaf{n // 2}" for n in range(8)]
    by_switch = shares(job, topology)
    assert list(by_switch) == ["root", "leaf0", "leaf1", "leaf2", "leaf3"]
    (root,), (leaf,) = by_switch["root"], by_switch["leaf2"]
    assert root.above is None
    assert [(m.rank, m.port, m.address) for m in root.members] == [
        (LEAF_RANK + 1 + n, 60 + n, f"10.0.0.{n + 1}") for n in range(4)
    ]
    assert [m.rank for m in leaf.members] == [4, 5]
    assert leaf.above is not None
    assert (leaf.above.kind, leaf.above.rank, leaf.above.port) == ("parent", LEAF_RANK + 3, 50)
    replicas = [m.replica for parts in by_switch.values() for share in parts for m in share.members]
    assert len(set(replicas)) == 12 and 0 not in replicas
    assert {levels(job, topology, rank) for rank in job.ranks.values()} == {2}


def test_a_job_under_one_leaf_stays_there() -> None:
    topology = tree()
    world = World(topology=topology)
    job = [world.join(rank, 2) for rank in range(2)][-1]
    by_switch = shares(job, topology)
    assert list(by_switch) == ["leaf0"] and by_switch["leaf0"][0].above is None
    assert {levels(job, topology, rank) for rank in job.ranks.values()} == {1}


def test_512_ranks_fit_a_tree_of_16_leaves() -> None:
    topology = tree(16, 32)
    world = World(topology=topology)
    job = [world.join(rank, 512) for rank in range(512)][-1]
    by_switch = shares(job, topology)
    assert job.state == "ready" and len(by_switch["root"][0].members) == 16
    assert all(len(by_switch[f"leaf{n}"][0].members) == 32 for n in range(16))
    for rank in range(512):
        world.table.leave("demo", rank)
    assert [world.join(rank, 512).state for rank in range(512)][-1] == "ready"


@pytest.mark.parametrize("policy", ["server", "chunk"])
def test_a_server_stands_at_the_root(policy: str) -> None:
    topology = tree()
    world = World(topology=topology)
    job = [world.join(rank, 2, policy=policy) for rank in range(2)][-1]
    assert job.state == "waiting"
    world.join(constants.RANK_ALL, 2, policy=policy)
    assert job.state == "ready" and job.server is not None and job.server.switch == "root"
    by_switch = shares(job, topology)
    assert list(by_switch) == ["root", "leaf0"]
    assert [by_switch[name][0].above.kind for name in by_switch] == ["server", "parent"]  # type: ignore[union-attr]


def test_every_switch_knows_the_way_to_the_hosts_of_a_job() -> None:
    root, *leaves = tree(2, 2).switches
    leaves = [replace(leaf, hosts={1: f"192.0.2.{n}"}) for n, leaf in enumerate(leaves)]
    topology = Topology((replace(root, hosts={1: "192.0.2.9"}), *leaves))
    assert [topology.flooded(switch) for switch in topology.switches] == [[1, 60, 61], [1, 50], [1, 50]]
    assert tree(2, 2).flooded(root) == []
    world = World(topology=topology)
    for rank, address in ((0, "192.0.2.0"), (1, "192.0.2.1"), (constants.RANK_ALL, "192.0.2.9")):
        job = world.table.join("demo", Joining(rank, 2, address, (5000,), 0xA0 + rank % 16, "server"))
    assert {name: list(share.hosts) for name, (share,) in shares(job, topology).items()} == {
        "root": [(0xA0, 60), (0xA1, 61), (0xAF, 1)],
        "leaf0": [(0xA0, 1), (0xA1, 50), (0xAF, 50)],
        "leaf1": [(0xA0, 50), (0xA1, 1), (0xAF, 50)],
    }


def test_shared_slots_are_overbooked_at_different_offsets(world: World) -> None:
    jobs = []
    for n in range(8):
        world.table._ports._free.give_back(("switch", 1))  # ports are not what this is about
        world.table._ports._free.give_back(("switch", 2))
        world.join(0, 1, f"job{n}", "shared")
        jobs.append(world.join(constants.RANK_ALL, 1, f"job{n}", "shared"))
    assert all((job.pools[0].first_slot, job.pools[0].slots) == (0, SLOTS_PER_POOL) for job in jobs)
    assert {job.pools[0].offset // SLOTS_PER_POOL for job in jobs} == {0}  # one pool of 128 slots for all eight
    assert len({job.pools[0].offset for job in jobs}) > 4
    assert world.join(0, 1, "own").pools[0].first_slot == SLOTS_PER_POOL


def test_pools_have_slots_groups_and_replicas_of_their_own(world: World) -> None:
    job = world.join(0, 1, pools=2)
    assert [pool.first_slot for pool in job.pools] == [0, SLOTS_PER_POOL]
    assert len({pool.group for pool in job.pools}) == 2 and len(set(job.ranks[0].replicas)) == 2
    with pytest.raises(RequestError, match="5 UDP ports: a job has 1 to 4 pools"):
        world.join(0, 1, "other", pools=5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "root"}, "two switches have the name root"),
        ({"address": "10.0.0.100"}, "two switches have the address"),
        ({"parent": None}, "has no parent, unlike leaf0"),
        ({"parent": "nobody"}, "comes before its parent nobody"),
        ({"uplink": 1}, "port 1 of leaf0 is used twice"),
        ({"downlink": 1}, "port 1 of root is used twice"),
    ],
)
def test_a_topology_that_is_no_tree_is_refused(changes: dict[str, Any], says: str) -> None:
    root, leaf = tree(1).switches
    with pytest.raises(ControllerError, match=says):
        Topology((root, replace(leaf, **changes)))


def test_a_topology_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    path.write_text(json.dumps({"switches": tree().as_json()}))
    assert Topology.read(path) == tree()
    for content, says in (("[]", "is not a JSON object"), ('{"switches": [{"name": "x"}]}', "a switch has name")):
        path.write_text(content)
        with pytest.raises(ControllerError, match=says):
            Topology.read(path)


def test_slot_ranges_are_aligned_and_never_overlap() -> None:
    pool = SlotPool(64)
    taken = {pool.take(size): size for size in (8, 32, 16, 8)}
    assert all(first % size == 0 for first, size in taken.items())
    slots = [slot for first, size in taken.items() for slot in range(first, first + size)]
    assert sorted(slots) == list(range(64))
    with pytest.raises(RequestError):
        pool.take(1)
    with pytest.raises(ValueError, match="not a power of two"):
        pool.take(3)


def test_numbers_come_back_lowest_first() -> None:
    pool = NumberPool(range(1, 4), "thing")
    assert [pool.take(), pool.take()] == [1, 2]
    pool.give_back(1)
    pool.give_back(1)
    assert [pool.take(), pool.take()] == [1, 3]
    with pytest.raises(RequestError, match="no thing is free"):
        pool.take()


# ---- hosts, slots, and switches that are started anew ----


def plugged(hosts: dict[int, str], ports: int = 3) -> World:
    switch = Switch("switch", "127.0.0.1:2", 1, "10.255.255.254", dict.fromkeys(range(1, ports + 1), "127.0.0.1:1"))
    return World(topology=Topology((replace(switch, hosts=hosts),)))


def come(world: World, rank: int, address: str, name: str = "demo", mac: int | None = 0xAA) -> Job:
    return world.table.join(name, Joining(rank, 2, address, (5000 + rank,), mac, nonce=f"{rank:032x}"))


def test_a_rank_gets_the_port_that_its_host_is_plugged_into() -> None:
    world = plugged({port: f"10.0.0.{port}" for port in range(1, 5)}, 4)
    come(world, 0, "10.0.0.3")
    job = come(world, 1, "10.0.0.1")
    assert [job.ranks[rank].switch_port for rank in (0, 1)] == [3, 1]
    for name, rank, address, mac, status, says in (
        ("other", 0, "10.0.0.9", 0xAA, 422, "has the host 10.0.0.9; hosts: 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4"),
        ("other", 0, "10.0.0.1", 0xAA, 503, "port 1 of switch, where host 10.0.0.1 is, has rank 1 of job demo: wait"),
        ("other", 0, "10.0.0.2", None, 422, "port 2 of switch, where host 10.0.0.2 is, needs the host's MAC"),
    ):
        with pytest.raises(RequestError, match=says) as refused:
            come(world, rank, address, name, mac)
        assert refused.value.status == status
        assert list(world.table.jobs) == ["demo"]


def test_two_ranks_of_a_job_cannot_share_a_host_but_one_may_move() -> None:
    world = plugged({1: "10.0.0.1", 2: "10.0.0.2"})
    come(world, 0, "10.0.0.1")
    with pytest.raises(RequestError, match="has rank 0 of job demo already: one rank per port") as refused:
        come(world, 1, "10.0.0.1")
    assert refused.value.status == 409
    # Nobody has been told yet: rank 0 may be started again somewhere else.
    come(world, 0, "10.0.0.2")
    job = come(world, 1, "10.0.0.1")
    assert job.state == "ready" and [job.ranks[rank].switch_port for rank in (0, 1)] == [2, 1]


def test_ports_without_a_host_are_anybodys() -> None:
    world = plugged({2: "10.0.0.2"})
    come(world, 0, "10.0.0.9")
    job = come(world, 1, "10.0.0.8")
    assert [job.ranks[rank].switch_port for rank in (0, 1)] == [1, 3]
    with pytest.raises(RequestError, match="job other needs 2 switch ports; free: 1: wait for a job to end"):
        come(world, 0, "10.0.0.7", "other")


def test_a_server_on_a_host_that_the_root_does_not_have_is_refused() -> None:
    root, leaf = tree(1).switches
    hosts = {1: "10.0.1.1"}, {1: "10.0.1.2", 2: "10.0.1.3"}
    topology = Topology((replace(root, hosts=hosts[0]), replace(leaf, hosts=hosts[1])))
    table = World(topology=topology).table
    with pytest.raises(RequestError, match=r"no switch port on root has the host 10.0.1.2; hosts: 10.0.1.1$"):
        table.join("demo", Joining(constants.RANK_ALL, 2, "10.0.1.2", (5000,), 1, "server"))
    job = table.join("demo", Joining(constants.RANK_ALL, 2, "10.0.1.1", (5000,), 1, "server"))
    assert job.server is not None and (job.server.switch, job.server.switch_port) == ("root", 1)


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ({9: "10.0.0.1"}, "port 9 of switch has the host 10.0.0.1, but ports does not say how to reach it"),
        ({1: "10.0.0.1", 2: "10.0.0.1"}, "the host 10.0.0.1 is on port 1 of switch and on port 2 of switch"),
    ],
)
def test_hosts_that_cannot_be_are_refused(hosts: dict[int, str], says: str) -> None:
    with pytest.raises(ControllerError, match=says):
        plugged(hosts)


def test_every_switch_knows_the_way_to_every_host() -> None:
    below = tree(2)
    root, first, second = (
        replace(
            switch,
            ports={1: "127.0.0.1:1", 2: "127.0.0.1:2"},
            macs={1: f"02:00:00:00:0{n}:01", 2: f"02:00:00:00:0{n}:02"},
        )
        for n, switch in enumerate(below.switches)
    )
    topology = Topology((root, first, second))
    up, down = first.uplink, {"leaf0": first.downlink, "leaf1": second.downlink}
    macs = [f"02:00:00:00:0{n}:0{port}" for n in range(3) for port in (1, 2)]
    ways = {
        root.name: [1, 2, down[first.name], down[first.name], down[second.name], down[second.name]],
        first.name: [up, up, 1, 2, up, up],
        second.name: [up, up, up, up, 1, 2],
    }
    for name, ports in ways.items():
        assert topology.forwarding(name) == dict(zip(macs, ports, strict=True))
    assert below.forwarding(root.name) == {}, "without MAC addresses there is nothing to know"


def test_nobody_joins_with_the_address_of_a_switch() -> None:
    world = World(topology=tree(2))
    for switch in world.table._topology.switches:
        with pytest.raises(RequestError, match=f"is the address of {switch.name}: join with the host's own"):
            world.table.join("demo", Joining(0, 1, switch.address, (5000,)))
    assert world.table.jobs == {}


def test_every_switch_knows_where_the_others_are_heard() -> None:
    below = tree(2)
    root, first, second = below.switches
    downwards = {first.address: first.downlink, second.address: second.downlink}
    assert below.fabric_sources(root.name) == downwards
    assert below.fabric_sources(first.name) == {root.address: first.uplink, second.address: first.uplink}
    assert single("127.0.0.1:2", 1, "10.255.255.254", {1: ""}).fabric_sources("switch") == {}


@pytest.mark.parametrize(
    ("macs", "says"),
    [
        ({"1": "nonsense"}, "'nonsense' is not a MAC address"),
        ({"1": "03:00:00:00:00:01"}, "03:00:00:00:00:01 is a multicast address, not a host's"),
        ({"9": "02:00:00:00:00:01"}, "port 9 of switch has the host 02:00:00:00:00:01, but ports does not say how"),
        ({"1": "02:00:00:00:00:0A", "2": "02:00:00:00:00:0a"}, "the host 02:00:00:00:00:0a is on port 1 of switch and"),
    ],
)
def test_mac_addresses_that_cannot_be_are_refused(macs: dict[str, str], says: str) -> None:
    described = single("127.0.0.1:9", 1, "10.255.255.254", {1: "a:1", 2: "a:2"}).as_json()
    with pytest.raises(ControllerError, match=says):
        Topology.of_json([{**described[0], "macs": macs}])


def test_hosts_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "topology.json"
    described = {"name": "s", "p4rt": "p", "device_id": 1, "address": "10.0.0.254", "ports": {"1": "10.0.0.254:4793"}}
    path.write_text(json.dumps({"switches": [{**described, "hosts": {"1": "10.0.0.1"}}]}))
    assert Topology.read(path).root.hosts == {1: "10.0.0.1"}
    path.write_text(json.dumps({"switches": [{**described, "hosts": {"1": "nonsense"}}]}))
    with pytest.raises(ControllerError, match="'nonsense'"):
        Topology.read(path)


def test_a_job_says_how_many_slots_it_wants(world: World) -> None:
    def ask(name: str, slots: int, pools: int = 1, rank: int = 0, policy: str = "sum") -> Job:
        ports = tuple(range(5000, 5000 + pools))
        return world.table.join(name, Joining(rank, 2, "127.0.0.1", ports, None, policy, slots))

    assert [(p.first_slot, p.slots) for p in ask("a", 32, 2).pools] == [(0, 32), (32, 32)]
    assert [(p.first_slot, p.slots) for p in ask("b", 256).pools] == [(256, 256)]
    for slots, pools, policy in ((0, 1, "sum"), (48, 1, "sum"), (2048, 1, "sum"), (1024, 2, "sum"), (64, 1, "shared")):
        with pytest.raises(RequestError, match=f"{slots} slots") as refused:
            ask("c", slots, pools, policy=policy)
        assert refused.value.status == 422
    with pytest.raises(RequestError, match="job a has 32 slots per pool; rank 1 came with 64") as refused:
        ask("a", 64, 2, rank=1)
    assert refused.value.status == 409
    assert list(world.table.jobs) == ["a", "b"]


def test_jobs_at_work_are_abandoned_and_their_numbers_come_back(world: World) -> None:
    world.join(0)
    world.join(0, 1, "waits", policy="server")
    old = world.join(1)
    ports = {rank.switch_port for rank in old.ranks.values()}
    # A switch that is started anew is asked for nothing.
    world.fabric.refuses = True
    world.table.abandon()
    world.fabric.refuses = False
    world.fabric.installed.clear()
    assert [job.state for job in world.table.jobs.values()] == ["waiting"]
    with pytest.raises(RequestError, match="there is no job demo"):
        world.table.heartbeat("demo", 0, 5)
    world.join(0)
    new = world.join(1)
    assert new.epoch > old.epoch and new.pools[0].first_slot == old.pools[0].first_slot
    assert {rank.switch_port for rank in new.ranks.values()} == ports
    world.join(constants.RANK_ALL, 1, "waits", policy="server")
    assert world.fabric.installed == ["demo", "waits"]
    # Who still speaks of the life before has no part in this one.
    for speak in (
        lambda: world.table.leave("demo", 0, old.epoch),
        lambda: world.table.heartbeat("demo", 0, 1, old.epoch),
    ):
        with pytest.raises(RequestError, match=f"epoch {old.epoch} of job demo is over") as refused:
            speak()
        assert refused.value.status == 404
    world.table.leave("demo", 0, new.epoch)
    assert new.ranks[0].state == "left"


def peers(world: World, count: int = 3, name: str = "demo", slots: int = 32) -> Job:
    """A job of `peers` that all ranks have joined."""
    for rank in range(count):
        asked = Joining(rank, count, "127.0.0.1", (5000 + rank,) * count, policy="peers", slots=slots)
        job = world.table.join(name, asked)
    return job


def test_every_rank_of_peers_is_the_source_of_a_pool(world: World) -> None:
    job = peers(world)
    assert job.state == "ready" and job.server is None
    (of_switch,) = shares(job, single("127.0.0.1:2", 1, "10.255.255.254", {1: ""})).values()
    assert [share.policy for share in of_switch] == ["chunk"] * 3
    assert [[member.rank for member in share.members] for share in of_switch] == [[1, 2], [0, 2], [0, 1]]
    assert [share.above and (share.above.rank, share.above.udp_port) for share in of_switch] == [
        (rank, 5000 + rank) for rank in range(3)
    ]
    replicas = [member.replica for share in of_switch for member in share.members]
    assert len(set(replicas)) == 6 and 0 not in replicas
    for rank in range(3):
        world.table.leave("demo", rank)
    assert world.table.jobs == {}
    again = peers(world)
    assert sorted(r for rank in again.ranks.values() for r in rank.replicas if r) == sorted(replicas)


def test_32_peers_fit_a_switch() -> None:
    world = World(ports=32)
    job = peers(world, 32, slots=8)
    assert job.state == "ready" and sum(pool.slots for pool in job.pools) == constants.SLOTS // 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            Joining(0, 1, "127.0.0.1", (5000,), policy="peers"),
            "world size 1 is not in 2..32, the ranks of policy peers",
        ),
        (
            Joining(0, 3, "127.0.0.1", (1, 2), policy="peers"),
            "2 UDP ports: policy peers has a pool for each of 3 ranks",
        ),
        (Joining(constants.RANK_ALL, 2, "127.0.0.1", (1, 2), policy="peers"), "policy peers has no server"),
        (Joining(0, 12, "127.0.0.1", (1,) * 12, policy="peers"), "128 slots in each of 12 pools"),
    ],
)
def test_impossible_peers_are_refused(world: World, asked: Joining, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        world.table.join("demo", asked)
    assert refused.value.status == 422
    assert world.table.jobs == {}


def test_the_tree_of_a_peers_chunks_has_its_root_where_the_peer_is() -> None:
    topology = tree(2, 2)
    job = peers(World(topology=topology), 4)  # 0 and 1 on leaf0, 2 and 3 on leaf1
    by_switch = shares(job, topology)
    leaf0, leaf1 = (topology.rank_of(name) for name in ("leaf0", "leaf1"))

    def seen(switch: str, pool: int) -> tuple[tuple[str, int], list[int]]:
        share = by_switch[switch][pool]
        assert share.above is not None
        return (share.above.kind, share.above.rank), [member.rank for member in share.members]

    assert seen("leaf0", 0) == (("server", 0), [1, leaf0])
    assert seen("root", 0) == (("parent", leaf0), [leaf1])
    assert seen("leaf1", 0) == (("parent", leaf1), [2, 3])
    assert seen("leaf1", 3) == (("server", 3), [2, leaf1])
    assert seen("root", 3) == (("parent", leaf1), [leaf0])
    # Neighbours have each other's addresses and ports.
    up, down = by_switch["leaf0"][0].members[-1], by_switch["root"][0].above
    assert down is not None
    assert (up.address, up.port) == (topology.root.address, topology.switch("leaf0").uplink)
    assert (down.address, down.port) == (topology.switch("leaf0").address, topology.switch("leaf0").downlink)
    assert by_switch["root"][0].members[0].port == topology.switch("leaf1").downlink


def test_jobs_share_a_port_whose_host_the_topology_knows() -> None:
    known = single("127.0.0.1:2", 1, "10.255.255.254", {1: "", 2: ""}).root
    known = replace(known, hosts={1: "192.0.2.1", 2: "192.0.2.2"}, macs={1: "02:00:00:00:00:01"})
    world = World(topology=Topology((known,)))

    def join(name: str, rank: int) -> Job:
        return world.table.join(name, Joining(rank, 2, f"192.0.2.{rank + 1}", (5000,), 0xA0 + rank))

    join("first", 0)
    with pytest.raises(RequestError, match="has rank 0 of job first already: one rank per port"):
        world.table.join("first", Joining(1, 2, "192.0.2.1", (5000,), 0xA0))
    join("second", 0)
    join("first", 1)
    with pytest.raises(RequestError, match="has rank 1 of job first: wait for that job to end"):
        join("second", 1)
    for rank in range(2):
        world.table.leave("first", rank)
    assert join("second", 1).state == "ready"
