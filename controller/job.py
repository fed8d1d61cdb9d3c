"""Jobs and their ranks: a state machine without clocks, sockets or switches of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from controller.allocation import NumberPool, SlotPool
from controller.errors import RequestError
from hostlib import layout

LARGEST_WORLD = 32
SLOTS_PER_JOB = 128
LEASE_S = 30.0


@dataclass(slots=True)
class Rank:
    """One member of a job. Times are seconds of the injected clock."""

    rank: int
    address: str
    udp_port: int
    switch_port: int
    replica: int
    heartbeat: float
    position: int = 0
    state: str = "joined"  # joined, lost, left


@dataclass(slots=True)
class Job:
    """One life of one job on the switch."""

    name: str
    job_id: int
    epoch: int
    world_size: int
    first_slot: int
    slots: int
    group: int
    state: str = "waiting"  # waiting for ranks, ready
    ranks: dict[int, Rank] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return all(rank.state != "joined" for rank in self.ranks.values())


class Fabric(Protocol):
    """What jobs need of a switch. Errors are SwitchError; install is all or nothing."""

    def install(self, job: Job) -> None: ...

    def remove(self, job: Job) -> None: ...


class JobTable:
    """All jobs of one switch.

    Args:
        fabric: where entries go.
        ports: switch port numbers that ranks can be given.
        clock: monotonic seconds.
        now: seconds since 1970, where epochs come from.
    """

    def __init__(self, fabric: Fabric, ports: list[int], clock: Callable[[], float], now: Callable[[], float]) -> None:
        self._fabric = fabric
        self._clock = clock
        self._now = now
        self._slots = SlotPool(layout.SLOTS)
        self._ports = NumberPool(ports, "switch port")
        self._ids = NumberPool(range(1, 1024), "job id")
        self._replicas = NumberPool(range(1, 1024), "replica id")
        self._last_epoch = 0
        self.jobs: dict[str, Job] = {}

    def join(self, name: str, rank: int, world_size: int, address: str, udp_port: int) -> Job:
        """A rank joins; the first one creates the job, the last one gets the entries installed.

        Raises:
            RequestError: 422 for impossible numbers, 409 for what contradicts the job, 503 when the switch is full.
            SwitchError: the entries could not be installed; the rank has not joined.
        """
        if not 1 <= world_size <= LARGEST_WORLD:
            raise RequestError(
                422, f"world size {world_size} is not in 1..{LARGEST_WORLD}: one switch sums so many ranks"
            )
        if not 0 <= rank < world_size:
            raise RequestError(422, f"rank {rank} is not in 0..{world_size - 1}, the ranks of world size {world_size}")
        self.expire()
        job = self.jobs.get(name)
        if job is not None and job.world_size != world_size:
            raise RequestError(409, f"job {name} has world size {job.world_size}; rank {rank} came with {world_size}")
        known = job.ranks.get(rank) if job is not None else None
        if job is not None and known is not None:
            moved = (known.address, known.udp_port) != (address, udp_port)
            if moved and job.state == "waiting":
                # A worker that was started again before the others came: nothing is installed yet.
                known.address, known.udp_port, moved = address, udp_port, False
            if moved:
                raise RequestError(
                    409, f"rank {rank} of job {name} has already joined from {known.address}:{known.udp_port}"
                )
            known.heartbeat = self._clock()
            known.state = "joined" if known.state == "lost" else known.state
            return job
        created = job is None
        job = job or self._create(name, world_size)
        try:
            member = Rank(rank, address, udp_port, self._ports.take(), 0, self._clock())
            job.ranks[rank] = member
            member.replica = self._replicas.take()
            if len(job.ranks) == world_size:
                self._fabric.install(job)
                job.state = "ready"
        except Exception:
            self._forget_rank(job, rank)
            if created:
                self._forget(job)
            raise
        return job

    def _create(self, name: str, world_size: int) -> Job:
        first = self._slots.take(SLOTS_PER_JOB)
        try:
            job_id = self._ids.take()
        except RequestError:
            self._slots.give_back(first)
            raise
        self._last_epoch = max(self._last_epoch + 1, int(self._now()))
        job = Job(name, job_id, self._last_epoch & 0xFFFFFFFF, world_size, first, SLOTS_PER_JOB, job_id)
        self.jobs[name] = job
        return job

    def find(self, name: str, rank: int | None = None) -> Job:
        """A job by name, and optionally with this rank in it.

        Raises:
            RequestError: 404.
        """
        job = self.jobs.get(name)
        if job is None:
            raise RequestError(404, f"there is no job {name}; jobs: {', '.join(sorted(self.jobs)) or 'none'}")
        if rank is not None and rank not in job.ranks:
            raise RequestError(404, f"rank {rank} has not joined job {name}")
        return job

    def heartbeat(self, name: str, rank: int, position: int) -> Job:
        """A rank is alive, and so far through its stream of slots."""
        job = self.find(name, rank)
        member = job.ranks[rank]
        member.heartbeat, member.position = self._clock(), position
        if member.state == "lost":
            member.state = "joined"
        return job

    def leave(self, name: str, rank: int) -> None:
        """A rank is done; the last one takes the job's entries with it."""
        job = self.find(name, rank)
        job.ranks[rank].state = "left"
        if job.state == "waiting":
            self._forget_rank(job, rank)
        if job.over:
            self._end(job)

    def expire(self) -> None:
        """Ranks without a heartbeat for LEASE_S are lost; jobs without a living rank end."""
        for job in list(self.jobs.values()):
            for rank in job.ranks.values():
                if rank.state == "joined" and self._clock() - rank.heartbeat > LEASE_S:
                    rank.state = "lost"
            if job.over:
                self._end(job)

    def end_all(self) -> None:
        """End every job, whatever its ranks do: the controller is going."""
        for job in list(self.jobs.values()):
            self._end(job)

    def _end(self, job: Job) -> None:
        try:
            if job.state == "ready":
                self._fabric.remove(job)
        finally:
            self._forget(job)

    def _forget_rank(self, job: Job, rank: int) -> None:
        member = job.ranks.pop(rank, None)
        if member is not None:
            self._ports.give_back(member.switch_port)
            if member.replica:
                self._replicas.give_back(member.replica)

    def _forget(self, job: Job) -> None:
        for rank in list(job.ranks):
            self._forget_rank(job, rank)
        self._slots.give_back(job.first_slot)
        self._ids.give_back(job.job_id)
        self.jobs.pop(job.name, None)

    # ---- surviving the controller's own death -----------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything that a restarted controller must know, as JSON values."""
        return {"last_epoch": self._last_epoch, "jobs": [asdict(job) for job in self.jobs.values()]}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Take over the jobs of an earlier life; every lease starts anew."""
        self._last_epoch = dumped["last_epoch"]
        for described in dumped["jobs"]:
            ranks = {
                int(number): Rank(**{**rank, "heartbeat": self._clock()}) for number, rank in described["ranks"].items()
            }
            job = Job(**{**described, "ranks": ranks})
            self.jobs[job.name] = job
            self._slots.reserve(job.first_slot, job.slots)
            self._ids.reserve(job.job_id)
            for rank in ranks.values():
                self._ports.reserve(rank.switch_port)
                self._replicas.reserve(rank.replica)
