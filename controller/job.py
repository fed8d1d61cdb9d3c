"""Jobs and their ranks: a state machine without clocks, sockets or switches of its own."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from typing import Any, Protocol

from controller.allocation import NumberPool, SlotPool
from controller.errors import RequestError
from controller.share import HOSTS_PER_SWITCH
from controller.topology import Topology
from hostlib import layout

LARGEST_WORLD = 512
LARGEST_POOLS = 4
SLOTS_PER_POOL = 128  # Unless a job asks for another number.
LEASE_S = 30.0
JOB_IDS = 1024

# sum: the switches sum and multicast; server: they sum, a server finishes; shared: so, in slots that jobs overbook;
# chunk: a server's chunks are multicast; peers: every rank's are, to the others, a pool of slots for each.
POLICIES = ("sum", "server", "shared", "chunk", "peers")
WITHOUT_SERVER = ("sum", "peers")


@dataclass(slots=True)
class Rank:
    """One member of a job, or its server. Times are seconds of the injected clock; one UDP port per pool of slots.

    Attributes:
        replicas: one per pool; 0 in that of its own chunks.
        progress: when its position last changed, as heartbeats tell; when it joined, before that.
    """

    rank: int
    address: str
    udp_ports: list[int]
    mac: int | None
    switch: str
    switch_port: int
    replicas: list[int]
    heartbeat: float
    progress: float
    position: int = 0
    state: str = "joined"  # joined, lost, left


@dataclass(slots=True)
class Pool:
    """A range of slots with the multicast group of its results."""

    first_slot: int
    slots: int
    group: int
    offset: int = 0


@dataclass(slots=True)
class Job:
    """One life of one job on the switches.

    Attributes:
        leaves: switch name -> its replica ids under its parent, one per pool.
    """

    name: str
    job_id: int
    epoch: int
    world_size: int
    policy: str
    pools: list[Pool]
    state: str = "waiting"  # waiting for ranks, ready
    ranks: dict[int, Rank] = field(default_factory=dict)
    server: Rank | None = None
    leaves: dict[str, list[int]] = field(default_factory=dict)

    @property
    def everybody(self) -> list[Rank]:
        return [*self.ranks.values(), *([self.server] if self.server else [])]

    @property
    def complete(self) -> bool:
        return len(self.ranks) == self.world_size and (self.policy in WITHOUT_SERVER or self.server is not None)

    @property
    def over(self) -> bool:
        return all(rank.state != "joined" for rank in self.everybody)


class Fabric(Protocol):
    """What jobs need of the switches. Errors are SwitchError; install is all or nothing."""

    def install(self, job: Job) -> None: ...

    def remove(self, job: Job) -> None: ...


@dataclass(frozen=True, slots=True)
class Joining:
    """What a rank, or a server (rank RANK_ALL), says of itself."""

    rank: int
    world_size: int
    address: str
    udp_ports: tuple[int, ...]
    mac: int | None = None
    policy: str = "sum"
    slots: int = SLOTS_PER_POOL


def _who(rank: int) -> str:
    return "the server" if rank == layout.RANK_ALL else f"rank {rank}"


class JobTable:
    """All jobs of one fabric.

    Args:
        fabric: where entries go.
        topology: the switches, and the ports that ranks can be given.
        clock: monotonic seconds.
        now: seconds since 1970, where epochs come from.
    """

    def __init__(
        self, fabric: Fabric, topology: Topology, clock: Callable[[], float], now: Callable[[], float]
    ) -> None:
        self._fabric = fabric
        self._topology = topology
        self._clock = clock
        self._now = now
        # A job has the same slots on every switch it uses.
        self._slots = SlotPool(layout.SLOTS)
        self._shared: int | None = None
        # Leaves first: a rank next to its own switch, the server at the root.
        places = [(s.name, n) for s in reversed(topology.switches) for n in sorted(s.ports)]
        self._ports = NumberPool(sorted(places, key=lambda place: self._order(place[0])), "switch port")
        self._ids = NumberPool(range(1, JOB_IDS), "job id")
        self._replicas = NumberPool(range(1, 1024), "replica id")
        self._last_epoch = 0
        self.jobs: dict[str, Job] = {}

    def _order(self, switch: str) -> tuple[int, int]:
        depth = len(self._topology.path(switch))
        return -depth, [s.name for s in self._topology.switches].index(switch)

    def join(self, name: str, asked: Joining) -> Job:
        """A rank or server joins; the first one creates the job, the last one gets the entries installed.

        Raises:
            RequestError: 422 for impossible numbers, 409 for what contradicts the job, 503 when the fabric is full.
            SwitchError: the entries could not be installed; the rank has not joined.
        """
        self._check(asked)
        self.expire()
        job = self.jobs.get(name)
        who = _who(asked.rank)
        if job is not None and job.world_size != asked.world_size:
            raise RequestError(409, f"job {name} has world size {job.world_size}; {who} came with {asked.world_size}")
        if job is not None and job.policy != asked.policy:
            raise RequestError(409, f"job {name} has policy {job.policy}; {who} came with {asked.policy}")
        if job is not None and len(job.pools) != len(asked.udp_ports):
            raise RequestError(
                409, f"job {name} has {len(job.pools)} pools of slots; {who} came with {len(asked.udp_ports)} UDP ports"
            )
        if job is not None and job.pools[0].slots != asked.slots:
            raise RequestError(
                409, f"job {name} has {job.pools[0].slots} slots per pool; {who} came with {asked.slots}"
            )
        known = self._known(job, asked.rank)
        if job is not None and known is not None:
            if known.address == asked.address or job.state != "waiting":
                self._again(job, known, asked, who)
                return job
            # A worker that was started again on another host before the others came.
            self._forget_rank(job, asked.rank)
        created = job is None
        job = job or self._create(name, asked)
        try:
            self._admit(job, asked)
            if job.complete:
                self._place_leaves(job)
                self._fabric.install(job)
                job.state = "ready"
        except Exception:
            self._forget_rank(job, asked.rank)
            self._forget_leaves(job)
            if created:
                self._forget(job)
            raise
        return job

    def _check(self, asked: Joining) -> None:
        alone = len(self._topology.switches) == 1
        largest = HOSTS_PER_SWITCH if alone else LARGEST_WORLD
        if not 1 <= asked.world_size <= largest:
            why = f": one switch sums {HOSTS_PER_SWITCH} ranks, more need a tree" if alone else ""
            raise RequestError(422, f"world size {asked.world_size} is not in 1..{largest}{why}")
        if asked.rank != layout.RANK_ALL and not 0 <= asked.rank < asked.world_size:
            raise RequestError(
                422,
                f"rank {asked.rank} is not in 0..{asked.world_size - 1}, the ranks of world size {asked.world_size}",
            )
        if asked.policy not in POLICIES:
            raise RequestError(422, f"no policy {asked.policy}; there are {', '.join(POLICIES)}")
        if asked.policy in WITHOUT_SERVER and asked.rank == layout.RANK_ALL:
            raise RequestError(422, f"policy {asked.policy} has no server; server, shared and chunk do")
        if asked.policy == "peers":
            self._check_peers(asked)
        elif not 1 <= len(asked.udp_ports) <= LARGEST_POOLS:
            raise RequestError(422, f"{len(asked.udp_ports)} UDP ports: a job has 1 to {LARGEST_POOLS} pools of slots")
        largest = layout.SLOTS // len(asked.udp_ports)
        if asked.policy == "shared" and asked.slots != SLOTS_PER_POOL:
            raise RequestError(
                422, f"{asked.slots} slots: jobs of the shared policy have {SLOTS_PER_POOL}, all the same"
            )
        if not 1 <= asked.slots <= largest or asked.slots & (asked.slots - 1):
            raise RequestError(
                422,
                f"{asked.slots} slots in each of {len(asked.udp_ports)} pools: a power of two it must be, "
                f"and a switch has {layout.SLOTS}",
            )

    @staticmethod
    def _check_peers(asked: Joining) -> None:
        if not 2 <= asked.world_size <= HOSTS_PER_SWITCH:
            raise RequestError(
                422, f"world size {asked.world_size} is not in 2..{HOSTS_PER_SWITCH}, the ranks of policy peers"
            )
        if len(asked.udp_ports) != asked.world_size:
            raise RequestError(
                422, f"{len(asked.udp_ports)} UDP ports: policy peers has a pool for each of {asked.world_size} ranks"
            )

    @staticmethod
    def _known(job: Job | None, rank: int) -> Rank | None:
        if job is None:
            return None
        return job.server if rank == layout.RANK_ALL else job.ranks.get(rank)

    def _again(self, job: Job, known: Rank, asked: Joining, who: str) -> None:
        if (known.address, known.udp_ports) != (asked.address, list(asked.udp_ports)):
            if job.state != "waiting":
                raise RequestError(
                    409, f"{who} of job {job.name} has already joined from {known.address}:{known.udp_ports[0]}"
                )
            # A worker that was started again before the others came: nothing is installed yet.
            known.udp_ports, known.mac = list(asked.udp_ports), asked.mac
        known.heartbeat = self._clock()
        known.state = "joined" if known.state == "lost" else known.state

    def _create(self, name: str, asked: Joining) -> Job:
        job_id = self._ids.take()
        self._last_epoch = max(self._last_epoch + 1, int(self._now()))
        job = Job(name, job_id, self._last_epoch & 0xFFFFFFFF, asked.world_size, asked.policy, [])
        self.jobs[name] = job
        try:
            for number in range(len(asked.udp_ports)):
                job.pools.append(self._pool(job, number, asked.slots))
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
        """Where in the pool a job's slots begin; a xor, so two slots of a job never meet."""
        return zlib.crc32(struct.pack(">HI", job.job_id, job.epoch)) % SLOTS_PER_POOL

    def _admit(self, job: Job, asked: Joining) -> None:
        is_server = asked.rank == layout.RANK_ALL
        # A server stands at the root, where the sums come out; so do the workers whose slots are shared there.
        at_root = is_server or job.policy == "shared"
        place = self._place(job, asked, at_root)
        now = self._clock()
        member = Rank(asked.rank, asked.address, list(asked.udp_ports), asked.mac, *place, [], now, now)
        if is_server:
            job.server = member
            return
        job.ranks[asked.rank] = member
        own = asked.rank if job.policy == "peers" else None
        member.replicas = [0 if number == own else self._replicas.take() for number in range(len(job.pools))]

    def _place(self, job: Job, asked: Joining, at_root: bool) -> tuple[str, int]:
        """A port for a rank: the one that its host is plugged into, where the topology says so; else any.

        Raises:
            RequestError: 422 for a host that is nowhere, 409 or 503 for one whose port has another rank already.
        """
        here = [s for s in self._topology.switches if not at_root or s.name == self._topology.root.name]
        hosts = {address: (s.name, port) for s in here for port, address in s.hosts.items()}
        place = hosts.get(asked.address)
        if place is not None:
            self._require_mac(place, asked)
            if self._is_free(place, job, asked):
                self._ports.take(lambda p: p == place)
            return place
        anybodys = {(s.name, port) for s in here for port in s.ports if port not in s.hosts}
        if hosts and not anybodys:
            at = f" on {here[0].name}" if at_root else ""
            raise RequestError(422, f"no switch port{at} has the host {asked.address}; hosts: {', '.join(hosts)}")
        return self._ports.take(lambda p: p in anybodys)

    @staticmethod
    def _require_mac(place: tuple[str, int], asked: Joining) -> None:
        if asked.mac is None and not IPv4Address(asked.address).is_loopback:
            where = f"port {place[1]} of {place[0]}, where host {asked.address} is,"
            raise RequestError(422, f"{where} needs the host's MAC address: join with mac")

    def _is_free(self, place: tuple[str, int], job: Job, asked: Joining) -> bool:
        """Whether nobody is at a port. Jobs share one where the way to its host is not a job's, but the topology's."""
        where = f"port {place[1]} of {place[0]}, where host {asked.address} is,"
        shared = place[1] in self._topology.switch(place[0]).macs
        others = [(other, rank) for other in self.jobs.values() for rank in self._at(other, place)]
        for other, rank in others:
            who = f"{_who(rank.rank)} of job {other.name}"
            if other is job:
                raise RequestError(409, f"{where} has {who} already: one rank per port")
            if not shared:
                raise RequestError(503, f"{where} has {who}: wait for that job to end")
        return not others

    @staticmethod
    def _at(job: Job, place: tuple[str, int]) -> list[Rank]:
        return [rank for rank in job.everybody if (rank.switch, rank.switch_port) == place]

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
        """A job by name, and optionally with this rank in it, and in this life of it.

        Raises:
            RequestError: 404.
        """
        job = self.jobs.get(name)
        if job is None:
            raise RequestError(404, f"there is no job {name}; jobs: {', '.join(sorted(self.jobs)) or 'none'}")
        if epoch is not None and epoch != job.epoch:
            raise RequestError(404, f"epoch {epoch} of job {name} is over; this is epoch {job.epoch}")
        if rank is not None and self._known(job, rank) is None:
            raise RequestError(404, f"{_who(rank)} has not joined job {name}")
        return job

    def member(self, name: str, rank: int, epoch: int | None = None) -> tuple[Job, Rank]:
        """A job and its rank, or its server (RANK_ALL).

        Raises:
            RequestError: 404.
        """
        job = self.find(name, rank, epoch)
        known = self._known(job, rank)
        assert known is not None
        return job, known

    def heartbeat(self, name: str, rank: int, position: int, epoch: int | None = None) -> Job:
        """A rank is alive, and so far through its stream of slots."""
        job, member = self.member(name, rank, epoch)
        member.heartbeat = self._clock()
        if position != member.position:
            member.progress, member.position = member.heartbeat, position
        if member.state == "lost":
            member.state = "joined"
        return job

    def leave(self, name: str, rank: int, epoch: int | None = None) -> None:
        """A rank is done; the last one takes the job's entries with it. With `epoch`, it leaves that life of the job and
        no later one.
        """
        job, member = self.member(name, rank, epoch)
        member.state = "left"
        if job.state == "waiting":
            self._forget_rank(job, rank)
        if job.over:
            self._end(job)

    def expire(self) -> None:
        """Ranks without a heartbeat for LEASE_S are lost; jobs without a living rank end."""
        for job in list(self.jobs.values()):
            for rank in job.everybody:
                if rank.state == "joined" and self._clock() - rank.heartbeat > LEASE_S:
                    rank.state = "lost"
            if job.over:
                self._end(job)

    def end_all(self) -> None:
        """End every job, whatever its ranks do: the controller is going."""
        for job in list(self.jobs.values()):
            self._end(job)

    def abandon(self) -> None:
        """Forget the jobs at work without a word to the switches, which have been started anew or will be. Jobs that
        wait for ranks go on waiting.
        """
        for job in list(self.jobs.values()):
            if job.state == "ready":
                self._forget(job)

    def _end(self, job: Job) -> None:
        try:
            if job.state == "ready":
                self._fabric.remove(job)
        finally:
            self._forget(job)

    def _forget_rank(self, job: Job, rank: int) -> None:
        if rank == layout.RANK_ALL:
            member, job.server = job.server, None
        else:
            member = job.ranks.pop(rank, None)
        if member is not None:
            place = member.switch, member.switch_port
            if not any(self._at(other, place) for other in self.jobs.values()):
                self._ports.give_back(place)
            for replica in filter(None, member.replicas):
                self._replicas.give_back(replica)

    def _forget_leaves(self, job: Job) -> None:
        for replicas in job.leaves.values():
            for replica in replicas:
                self._replicas.give_back(replica)
        job.leaves.clear()

    def _forget(self, job: Job) -> None:
        for rank in [*job.ranks, layout.RANK_ALL]:
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

    # ---- surviving the controller's own death -----------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything that a restarted controller must know, as JSON values."""
        return {"last_epoch": self._last_epoch, "jobs": [asdict(job) for job in self.jobs.values()]}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Take over the jobs of an earlier life; every lease starts anew."""
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
