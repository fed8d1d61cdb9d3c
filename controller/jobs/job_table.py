"""The table of jobs and ranks: a state machine without clocks, sockets or switches of its own."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from controller.errors import RequestError
from controller.jobs.allocation import NumberPool, SlotPool
from controller.jobs.job import Job, JobEntries, Joining, Pool, Rank, member_name
from controller.jobs.switch_ports import SwitchPorts
from controller.jobs.switch_share import HOSTS_PER_SWITCH
from controller.topology import Topology
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL

LEASE_S = 30.0
JOB_IDS = 1024


class JobTable:
    """All jobs of one fabric.

    Args:
        entries: installs the jobs' entries.
        topology: the switches, and the ports available to ranks.
        clock: monotonic seconds.
        now: seconds since 1970, from which epochs are derived.
    """

    def __init__(
        self, entries: JobEntries, topology: Topology, clock: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self._entries = entries
        self._topology = topology
        self._clock = clock
        self._now = now
        # A job has the same slots on every switch that it uses.
        self._slots = SlotPool(constants.SLOTS)
        self._shared: int | None = None
        self._ports = SwitchPorts(topology, lambda: self.jobs.values())
        self._ids = NumberPool(range(1, JOB_IDS), "job id")
        self._replicas = NumberPool(range(1, 1024), "replica id")
        self._last_epoch = 0
        self.jobs: dict[str, Job] = {}

    def join(self, name: str, joining: Joining) -> Job:
        """Add a rank or server; the first one creates the job, the last one has the entries installed.

        Raises:
            RequestError: 422 for impossible numbers, 409 for a contradiction to the job, 503 if the fabric is full.
            SwitchError: the entries could not be installed; the rank has not joined.
        """
        joining.require_legal(len(self._topology.switches))
        self.expire()
        job = self.jobs.get(name)
        who = member_name(joining.rank)
        if job is not None and job.world_size != joining.world_size:
            raise RequestError(409, f"job {name} has world size {job.world_size}; {who} came with {joining.world_size}")
        if job is not None and job.policy != joining.policy:
            raise RequestError(409, f"job {name} has policy {job.policy}; {who} came with {joining.policy}")
        if job is not None and len(job.pools) != len(joining.udp_ports):
            raise RequestError(
                409,
                f"job {name} has {len(job.pools)} pools of slots; {who} came with {len(joining.udp_ports)} UDP ports",
            )
        if job is not None and job.pools[0].slots != joining.slots:
            raise RequestError(
                409, f"job {name} has {job.pools[0].slots} slots per pool; {who} came with {joining.slots}"
            )
        known = self._known(job, joining.rank)
        if job is not None and known is not None:
            if known.address == joining.address or job.state != "waiting":
                self._again(job, known, joining, who)
                return job
            # A worker that was restarted on another host before the job was complete.
            self._forget_rank(job, joining.rank)
        created = job is None
        job = job or self._create(name, joining)
        try:
            self._admit(job, joining)
            if job.complete:
                self._place_leaves(job)
                self._entries.install(job)
                job.state = "ready"
        except Exception:
            self._forget_rank(job, joining.rank)
            self._forget_leaves(job)
            if created:
                self._forget(job)
            raise
        return job

    @staticmethod
    def _known(job: Job | None, rank: int) -> Rank | None:
        if job is None:
            return None
        return job.server if rank == constants.RANK_ALL else job.ranks.get(rank)

    def _again(self, job: Job, known: Rank, joining: Joining, who: str) -> None:
        if (known.address, known.udp_ports) != (joining.address, list(joining.udp_ports)):
            if job.state != "waiting":
                raise RequestError(
                    409, f"{who} of job {job.name} has already joined from {known.address}:{known.udp_ports[0]}"
                )
            # A worker that was restarted before the job was complete: nothing is installed yet.
            known.udp_ports, known.mac = list(joining.udp_ports), joining.mac
        known.heartbeat = self._clock()
        known.state = "joined" if known.state == "lost" else known.state

    def _create(self, name: str, joining: Joining) -> Job:
        job_id = self._ids.take()
        self._last_epoch = max(self._last_epoch + 1, int(self._now()))
        job = Job(name, job_id, self._last_epoch & 0xFFFFFFFF, joining.world_size, joining.policy, [])
        self.jobs[name] = job
        try:
            for number in range(len(joining.udp_ports)):
                job.pools.append(self._pool(job, number, joining.slots))
        except RequestError:
            self._forget(job)
            raise
        return job

    def _pool(self, job: Job, number: int, slots: int) -> Pool:
        group = job.job_id + JOB_IDS * number
        if job.policy != "shared":
            return Pool(self._slots.take(slots), slots, group)
        if number > 0:
            raise RequestError(422, "shared slots are one pool: join with one UDP port")
        if self._shared is None:
            self._shared = self._slots.take(SLOTS_PER_POOL)
        return Pool(0, SLOTS_PER_POOL, group, self._shared | self._hash(job))

    @staticmethod
    def _hash(job: Job) -> int:
        """Offset of a job's slots in the pool; combined by xor, so two slots of a job never collide."""
        return zlib.crc32(struct.pack(">HI", job.job_id, job.epoch)) % SLOTS_PER_POOL

    def _admit(self, job: Job, joining: Joining) -> None:
        is_server = joining.rank == constants.RANK_ALL
        # A server is at the root, where the final sums are; so are the workers if slots are shared there.
        at_root = is_server or job.policy == "shared"
        place = self._ports.take(job, joining, at_root)
        now = self._clock()
        member = Rank(joining.rank, joining.address, list(joining.udp_ports), joining.mac, *place, [], now, now)
        if is_server:
            job.server = member
            return
        job.ranks[joining.rank] = member
        own = joining.rank if job.policy == "peers" else None
        member.replicas = [0 if number == own else self._replicas.take() for number in range(len(job.pools))]

    def _place_leaves(self, job: Job) -> None:
        for name in {above for rank in job.ranks.values() for above in self._topology.path(rank.switch)}:
            if self._topology.switch(name).parent is not None:
                job.leaves[name] = [self._replicas.take() for _ in job.pools]
        for switch in self._topology.switches:
            below = [rank for rank in job.ranks.values() if rank.switch == switch.name]
            members = len(below) + sum(child.name in job.leaves for child in self._topology.children(switch.name))
            if members > HOSTS_PER_SWITCH:
                raise RequestError(
                    422, f"{members} ranks on {switch.name}: one switch sums {HOSTS_PER_SWITCH}; more need a tree"
                )

    def find(self, name: str, rank: int | None = None, epoch: int | None = None) -> Job:
        """Find a job by name, and optionally require a rank and an epoch.

        Raises:
            RequestError: 404.
        """
        job = self.jobs.get(name)
        if job is None:
            raise RequestError(404, f"there is no job {name}; jobs: {', '.join(sorted(self.jobs)) or 'none'}")
        if epoch is not None and epoch != job.epoch:
            raise RequestError(404, f"epoch {epoch} of job {name} is over; this is epoch {job.epoch}")
        if rank is not None and self._known(job, rank) is None:
            raise RequestError(404, f"{member_name(rank)} has not joined job {name}")
        return job

    def member(self, name: str, rank: int, epoch: int | None = None) -> tuple[Job, Rank]:
        """Find a job and its rank, or its server (RANK_ALL).

        Raises:
            RequestError: 404.
        """
        job = self.find(name, rank, epoch)
        known = self._known(job, rank)
        assert known is not None
        return job, known

    def heartbeat(self, name: str, rank: int, position: int, epoch: int | None = None) -> Job:
        """Record a rank's heartbeat and its position in its stream of slots."""
        job, member = self.member(name, rank, epoch)
        member.heartbeat = self._clock()
        if position != member.position:
            member.progress, member.position = member.heartbeat, position
        if member.state == "lost":
            member.state = "joined"
        return job

    def leave(self, name: str, rank: int, epoch: int | None = None) -> None:
        """Remove a rank; with the last one, the job's entries are removed.

        Args:
            epoch: leave only this life of the job, not a later one.
        """
        job, member = self.member(name, rank, epoch)
        member.state = "left"
        if job.state == "waiting":
            self._forget_rank(job, rank)
        if job.over:
            self._end(job)

    def expire(self) -> None:
        """Mark ranks without a heartbeat for LEASE_S as lost; end jobs without a living rank."""
        for job in list(self.jobs.values()):
            for rank in job.everybody:
                if rank.state == "joined" and self._clock() - rank.heartbeat > LEASE_S:
                    rank.state = "lost"
            if job.over:
                self._end(job)

    def end_all(self) -> None:
        """End every job, whatever its ranks do, because the controller exits."""
        for job in list(self.jobs.values()):
            self._end(job)

    def abandon(self) -> None:
        """Forget running jobs without telling the switches, which have been or will be restarted. Waiting jobs stay.
        wait for ranks go on waiting.
        """
        for job in list(self.jobs.values()):
            if job.state == "ready":
                self._forget(job)

    def _end(self, job: Job) -> None:
        try:
            if job.state == "ready":
                self._entries.remove(job)
        finally:
            self._forget(job)

    def _forget_rank(self, job: Job, rank: int) -> None:
        if rank == constants.RANK_ALL:
            member, job.server = job.server, None
        else:
            member = job.ranks.pop(rank, None)
        if member is not None:
            self._ports.give_back((member.switch, member.switch_port))
            for replica in filter(None, member.replicas):
                self._replicas.give_back(replica)

    def _forget_leaves(self, job: Job) -> None:
        for replicas in job.leaves.values():
            for replica in replicas:
                self._replicas.give_back(replica)
        job.leaves.clear()

    def _forget(self, job: Job) -> None:
        for rank in [*job.ranks, constants.RANK_ALL]:
            self._forget_rank(job, rank)
        self._forget_leaves(job)
        if job.policy != "shared":
            for pool in job.pools:
                self._slots.give_back(pool.first_slot)
        self._ids.give_back(job.job_id)
        self.jobs.pop(job.name, None)
        if self._shared is not None and not any(other.policy == "shared" for other in self.jobs.values()):
            self._slots.give_back(self._shared)
            self._shared = None

    # ---- state across restarts of the controller -------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything that a restarted controller must know, as JSON values."""
        return {"last_epoch": self._last_epoch, "jobs": [asdict(job) for job in self.jobs.values()]}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Restore an earlier controller's jobs; every lease starts again."""
        self._last_epoch = dumped["last_epoch"]
        for described in dumped["jobs"]:
            ranks = {int(number): self._revived(rank) for number, rank in described["ranks"].items()}
            server = self._revived(described["server"]) if described["server"] else None
            pools = [Pool(**pool) for pool in described["pools"]]
            job = Job(**{**described, "ranks": ranks, "server": server, "pools": pools})
            self.jobs[job.name] = job
            self._ids.reserve(job.job_id)
            for pool in job.pools:
                if job.policy == "shared":
                    self._shared = pool.offset & -SLOTS_PER_POOL
                    self._slots.reserve(self._shared, SLOTS_PER_POOL)
                else:
                    self._slots.reserve(pool.first_slot, pool.slots)
            for rank in job.everybody:
                self._ports.reserve((rank.switch, rank.switch_port))
            for replicas in [*(rank.replicas for rank in job.everybody), *job.leaves.values()]:
                for replica in replicas:
                    self._replicas.reserve(replica)

    def _revived(self, rank: dict[str, Any]) -> Rank:
        return Rank(**{**rank, "heartbeat": self._clock(), "progress": self._clock()})
