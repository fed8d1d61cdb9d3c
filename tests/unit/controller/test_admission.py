"""Jobs are admitted whole or not at all, wait in a queue, and stay within quotas and off drained switches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.errors import RequestError, ShortError, StateError, SwitchError
from controller.jobs.job import Job, Joining
from controller.jobs.job_table import LEASE_S, JobTable
from controller.jobs.quota import Quota
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL
from tests.unit.controller.test_job import Clock, MemoryFabric, World, tree


def join(table: JobTable, name: str, rank: int, world_size: int, **changes: Any) -> Job:
    fields = {"address": "127.0.0.1", "udp_ports": (5000 + rank % 1000,), "nonce": f"{rank:032x}", **changes}
    return table.join(name, Joining(rank, world_size, **fields))


def all_join(table: JobTable, name: str, world_size: int, **changes: Any) -> Job:
    return [join(table, name, rank, world_size, **changes) for rank in range(world_size)][-1]


def test_of_two_jobs_that_do_not_fit_together_one_is_whole() -> None:
    table = World(ports=32).table
    join(table, "first", 0, 20)
    with pytest.raises(ShortError, match="job second needs 20 switch ports; free: 12: wait for a job to end"):
        join(table, "second", 0, 20)
    assert all_join(table, "first", 20).state == "ready"
    assert all_join(table, "third", 12).state == "ready"


def test_ports_that_are_kept_are_those_that_ranks_get() -> None:
    """Also of two jobs whose ranks come in turns: each has its own leaf."""
    table = World(topology=tree(2, 2)).table
    for rank in range(2):
        first, second = (join(table, name, rank, 2) for name in ("first", "second"))
    assert {rank.switch for rank in first.ranks.values()} == {"leaf0"}
    assert {rank.switch for rank in second.ranks.values()} == {"leaf1"}
    assert first.kept == second.kept == [] and first.spare == second.spare == []


def test_a_server_has_its_port_at_the_root_kept() -> None:
    world = World(topology=tree(2, 2))
    join(world.table, "first", 0, 2, policy="server")
    with pytest.raises(ShortError, match="needs 3 switch ports, one of them on root; free: 2"):
        join(world.table, "second", 0, 2, policy="server")
    with pytest.raises(RequestError, match="needs 3 switch ports; the switch root has 1") as refused:
        join(world.table, "shared", 0, 2, policy="shared")
    assert refused.value.status == 422
    job = join(world.table, "first", constants.RANK_ALL, 2, policy="server")
    assert job.server is not None and job.server.switch == "root"


def test_slots_that_are_free_but_apart_are_short() -> None:
    world = World(ports=4)
    for number in range(4):
        join(world.table, f"job{number}", 0, 1, slots=constants.SLOTS // 4)
    world.table.end("job1")
    with pytest.raises(ShortError, match="512 slots are needed, and 256 of 1024 are free"):
        join(world.table, "wide", 0, 1, slots=constants.SLOTS // 2)
    world.table.end("job2")
    with pytest.raises(ShortError, match="512 slots in a row are needed; 512 of 1024 are free, and not in a row"):
        join(world.table, "wide", 0, 1, slots=constants.SLOTS // 2)
    assert len(world.table._ports._free.free) == 2 and sorted(world.table.jobs) == ["job0", "job3"]


def test_an_incomplete_job_without_a_sign_of_life_gives_everything_back() -> None:
    world = World(ports=32)
    join(world.table, "first", 0, 20)
    join(world.table, "first", 1, 20)
    world.clock.seconds += LEASE_S + 1
    assert all_join(world.table, "second", 20).state == "ready"
    assert list(world.table.jobs) == ["second"]
    world.table.end("second")
    assert len(world.table._ports._free.free) == 32 and len(world.table._replicas.free) == 1023
    assert world.table._slots.free == constants.SLOTS and len(world.table._ids.free) == 1023


def test_a_queue_is_first_come_first_served_within_a_priority() -> None:
    world = World(ports=4)
    table = world.table
    all_join(table, "now", 4)
    for name, priority in (("low", 0), ("high", 5), ("later", 0)):
        assert join(table, name, 0, 3, queue=True, priority=priority).state == "queued"
    assert [job.name for job in table.queue] == ["high", "low", "later"]
    with pytest.raises(ShortError, match="3 jobs are queued before hasty: wait for them, or join the queue"):
        join(table, "hasty", 0, 1)
    assert join(table, "now", 0, 4).state == "ready", "who has joined is no newcomer"
    all_join(table, "low", 3, queue=True)
    for rank in range(4):
        table.leave("now", rank)
    assert [table.jobs[name].state for name in ("high", "low", "later")] == ["waiting", "queued", "queued"]
    table.leave("high", 0)
    assert [job.name for job in table.queue] == ["later"] and table.jobs["low"].state == "ready"
    assert world.fabric.installed == ["low"]
    table.end("low")
    assert table.jobs["later"].state == "waiting"


def test_a_queued_job_whose_ranks_are_gone_leaves_the_queue() -> None:
    world = World(ports=2)
    all_join(world.table, "now", 2)
    join(world.table, "gone", 0, 2, queue=True)
    join(world.table, "left", 0, 2, queue=True)
    world.table.leave("left", 0)
    world.clock.seconds += LEASE_S + 1
    for rank in range(2):
        world.table.heartbeat("now", rank, 1)
    world.table.expire()
    assert list(world.table.jobs) == ["now"]


def test_a_switch_that_fails_leaves_a_promoted_job_in_the_queue() -> None:
    world = World(ports=2)
    all_join(world.table, "now", 2)
    all_join(world.table, "next", 2, queue=True)
    world.fabric.refuses = True
    with pytest.raises(SwitchError):
        world.table.end("now")
    assert world.table.jobs["next"].state == "queued"
    world.fabric.refuses = False
    world.table.expire()
    assert world.table.jobs["next"].state == "ready"


@pytest.mark.parametrize(
    ("quota", "says", "status"),
    [
        (Quota(ports=3), "tenant blue may have 3 ports: job two needs 2, and its other jobs have 2", 503),
        (Quota(slots=SLOTS_PER_POOL), f"may have {SLOTS_PER_POOL} slots: job two needs {SLOTS_PER_POOL}, and", 503),
        (Quota(jobs=1), "tenant blue may have 1 jobs: job two needs 1, and its other jobs have 1", 503),
        (Quota(ports=2, slots=64), "tenant blue may have 64 slots: job one needs 128$", 422),
    ],
)
def test_a_tenant_has_no_more_than_its_quota(quota: Quota, says: str, status: int) -> None:
    world = World()
    table = JobTable(
        world.fabric,
        world.topology or tree(),
        world.clock,
        world.now,
        quota=lambda t: quota if t == "blue" else Quota(),
    )
    with pytest.raises(RequestError, match=says) as refused:
        for name in ("one", "two"):
            all_join(table, name, 2, tenant="blue")
    assert refused.value.status == status
    assert all_join(table, "theirs", 2, tenant="green").state == "ready"
    with pytest.raises(RequestError, match="job theirs is another tenant's: choose another name") as refused:
        join(table, "theirs", 0, 2, tenant="blue", nonce="b" * 32)
    assert refused.value.status == 403


def test_shared_slots_are_on_nobodys_quota() -> None:
    world = World(ports=8)
    table = JobTable(world.fabric, world.table._topology, world.clock, world.now, quota=lambda t: Quota(slots=64))
    for name in ("one", "two"):
        join(table, name, 0, 1, policy="shared")
        join(table, name, constants.RANK_ALL, 1, policy="shared")
    assert world.fabric.installed == ["one", "two"]


def test_a_drained_switch_empties() -> None:
    world = World(topology=tree(2, 2))
    table = world.table
    all_join(table, "old", 2)
    table.drain("leaf0")
    assert (table.drained, table.jobs_on("leaf0"), table.jobs_on("leaf1")) == ({"leaf0"}, ["old"], [])
    assert {rank.switch for rank in all_join(table, "new", 2).ranks.values()} == {"leaf1"}
    with pytest.raises(ShortError, match="free: 1; no new jobs on leaf0, which drains: wait"):
        join(table, "more", 0, 2)
    assert join(table, "more", 0, 2, queue=True).state == "queued"
    for rank in range(2):
        table.leave("old", rank)
    assert table.jobs_on("leaf0") == [] and table.jobs["more"].state == "queued"
    later = JobTable(MemoryFabric(), table._topology, Clock(), Clock())
    later.restore(json.loads(json.dumps(table.dump())))
    assert later.drained == {"leaf0"} and later.jobs["more"].state == "queued"
    for each in (table, later):
        each.drain("leaf0", drained=False)
        assert (each.drained, each.jobs["more"].state, each.jobs_on("leaf0")) == (set(), "waiting", ["more"])
    table.drain("root")
    with pytest.raises(ShortError, match="free: 0; no new jobs on root, which drains"):
        join(table, "any", 0, 1)
    with pytest.raises(RequestError, match="there is no switch spine; switches: root, leaf0, leaf1") as refused:
        table.drain("spine")
    assert refused.value.status == 404


def test_kept_ports_survive_a_restart() -> None:
    world = World(ports=4)
    first = join(world.table, "demo", 0, 3)
    later = World(ports=4, fabric=world.fabric)
    later.table.restore(json.loads(json.dumps(world.table.dump())))
    with pytest.raises(ShortError, match="needs 2 switch ports; free: 1"):
        join(later.table, "other", 0, 2)
    job = [join(later.table, "demo", rank, 3) for rank in (1, 2)][-1]
    assert job.state == "ready" and job.ranks[0].switch_port == first.ranks[0].switch_port
    assert len({rank.switch_port for rank in job.ranks.values()}) == 3


class Disk:
    """Where the table is saved, until it is full."""

    def __init__(self) -> None:
        self.full = False
        self.saved: dict[str, Any] = {}

    def __call__(self, dump: dict[str, Any]) -> None:
        if self.full:
            raise StateError("the state cannot be written: No space left on device")
        self.saved = json.loads(json.dumps(dump))


def test_what_cannot_be_saved_does_not_happen() -> None:
    world, disk = World(), Disk()
    table = JobTable(world.fabric, world.table._topology, world.clock, world.now, disk)
    join(table, "demo", 0, 2)
    disk.full = True
    before = table.dump()["jobs"]
    for refused in (
        lambda: join(table, "demo", 1, 2),
        lambda: join(table, "other", 0, 1),
        lambda: table.drain("switch"),
    ):
        with pytest.raises(StateError, match="No space left"):
            refused()
        assert (table.dump()["jobs"], table.drained, world.fabric.installed) == (before, set(), [])
    disk.full = False
    assert join(table, "demo", 1, 2).state == "ready" and world.fabric.installed == ["demo"]
    assert disk.saved["jobs"][0]["state"] == "ready"


def test_an_end_that_cannot_be_announced_does_not_happen() -> None:
    """A removal of entries must be on disk before it begins (RecordedEntries)."""
    world = World()
    job = all_join(world.table, "demo", 1)

    def refuse(job: Job) -> None:
        raise StateError("the state cannot be written: No space left on device")

    world.fabric.remove = refuse  # type: ignore[method-assign]
    for end in (lambda: world.table.leave("demo", 0), lambda: world.table.end("demo")):
        with pytest.raises(StateError):
            end()
        assert world.table.jobs == {"demo": job} and job.ranks[0].state == "joined"
