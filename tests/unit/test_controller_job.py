"""Jobs, leases and what they share, on a fabric that is a list in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from controller.allocation import NumberPool, SlotPool
from controller.errors import RequestError, SwitchError
from controller.job import LARGEST_WORLD, LEASE_S, SLOTS_PER_JOB, Job, JobTable
from hostlib import layout


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
    fabric: MemoryFabric = field(default_factory=MemoryFabric)
    clock: Clock = field(default_factory=Clock)
    now: Clock = field(default_factory=lambda: Clock(1_700_000_000.0))

    def __post_init__(self) -> None:
        self.table = JobTable(self.fabric, list(range(1, self.ports + 1)), self.clock, self.now)

    def join(self, rank: int, world_size: int = 2, name: str = "demo", udp_port: int | None = None) -> Job:
        return self.table.join(name, rank, world_size, "127.0.0.1", udp_port or 5000 + rank)


@pytest.fixture
def world() -> World:
    return World()


def test_the_last_rank_makes_the_job_ready(world: World) -> None:
    assert world.join(0).state == "waiting"
    assert world.fabric.installed == []
    job = world.join(1)
    assert job.state == "ready"
    assert world.fabric.installed == ["demo"]
    assert (job.first_slot, job.slots) == (0, SLOTS_PER_JOB)
    assert job.job_id != 0
    assert len({rank.switch_port for rank in job.ranks.values()}) == 2
    assert len({rank.replica for rank in job.ranks.values()}) == 2
    assert 0 not in {rank.replica for rank in job.ranks.values()}


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
        (0, LARGEST_WORLD + 1, f"world size {LARGEST_WORLD + 1} is not in"),
        (2, 2, "rank 2 is not in 0..1"),
        (-1, 2, "rank -1 is not in 0..1"),
    ],
)
def test_impossible_numbers_are_refused(world: World, rank: int, world_size: int, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refused:
        world.join(rank, world_size)
    assert refused.value.status == 422
    assert world.table.jobs == {}


def test_another_world_size_is_refused(world: World) -> None:
    world.join(0, world_size=2)
    with pytest.raises(RequestError, match="has world size 2; rank 1 came with 3") as refused:
        world.join(1, world_size=3)
    assert refused.value.status == 409


def test_a_rank_cannot_be_taken_over_from_another_address(world: World) -> None:
    world.join(0)
    world.join(1)
    with pytest.raises(RequestError, match="already joined") as refused:
        world.join(1, udp_port=9999)
    assert refused.value.status == 409
    assert world.table.jobs["demo"].ranks[1].udp_port == 5001


def test_without_a_port_nothing_is_left_half_joined() -> None:
    world = World(ports=1)
    world.join(0)
    with pytest.raises(RequestError, match="no switch port is free") as refused:
        world.join(1)
    assert refused.value.status == 503
    assert list(world.table.jobs["demo"].ranks) == [0]
    with pytest.raises(RequestError):
        world.join(0, name="other")
    assert list(world.table.jobs) == ["demo"]


def test_slots_run_out_and_come_back(world: World) -> None:
    fitting = layout.SLOTS // SLOTS_PER_JOB
    jobs = [world.join(0, 1, f"job{n}") for n in range(fitting)]
    assert sorted(job.first_slot for job in jobs) == list(range(0, layout.SLOTS, SLOTS_PER_JOB))
    with pytest.raises(RequestError, match=f"no {SLOTS_PER_JOB} slots are free") as refused:
        world.join(0, 1, "one too many")
    assert refused.value.status == 503
    world.table.leave("job1", 0)
    assert world.join(0, 1, "next").first_slot == jobs[1].first_slot


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
    assert world.join(0, world_size=1).first_slot == 0


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


def test_a_restarted_controller_takes_the_jobs_over(world: World) -> None:
    world.join(0)
    world.join(1)
    world.join(0, 3, "waiting")
    dumped = json.loads(json.dumps(world.table.dump()))

    later = World(fabric=world.fabric, clock=Clock(5.0), now=Clock(0.0))
    later.table.restore(dumped)
    assert later.table.jobs["demo"].state == "ready"
    assert world.fabric.installed == ["demo"]
    later.table.expire()
    assert all(rank.state == "joined" for rank in later.table.jobs["demo"].ranks.values())

    fresh = later.join(0, 1, "fresh")
    taken = [job for name, job in later.table.jobs.items() if name != "fresh"]
    assert fresh.first_slot not in {job.first_slot for job in taken}
    assert fresh.job_id not in {job.job_id for job in taken}
    assert fresh.epoch > max(job.epoch for job in taken)
    ports = [rank.switch_port for job in later.table.jobs.values() for rank in job.ranks.values()]
    replicas = [rank.replica for job in later.table.jobs.values() for rank in job.ranks.values()]
    assert len(set(ports)) == len(ports)
    assert len(set(replicas)) == len(replicas)
    later.table.leave("demo", 0)
    later.table.leave("demo", 1)
    assert "demo" not in world.fabric.installed


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
