"""The table of jobs and ranks: a state machine without clocks, sockets or switches of its own."""

from __future__ import annotations

import contextlib
import copy
import secrets
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from controller.errors import RequestError, ShortError, StateError, SwitchError
from controller.jobs.allocation import NumberPool, SlotPool
from controller.jobs.job import POOL_PER_RANK, SECRET_BYTES, Job, JobEntries, Joining, Pool, Rank, member_name
from controller.jobs.port_check import forget_port
from controller.jobs.quota import Quota
from controller.jobs.rank_token import is_owner, require_owner
from controller.jobs.split_by_switch import levels
from controller.jobs.switch_ports import SwitchPorts
from controller.topology import Topology
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL

LEASE_S = 30.0
SHORTEST_LEASE_S = 15.0  # three heartbeats of a rank
REPLACED_S = 2  # a rank of an incomplete job that does not poll for this long may be replaced
JOB_IDS = 1024


class JobTable:
    """All jobs of one fabric.

    The first rank that joins has everything reserved that its job needs: ports, slots, groups and replicas, at once or
    not at all. A job without room is refused, or waits in a queue.

    Args:
        entries: installs the jobs' entries.
        topology: the switches, and the ports available to ranks.
        clock: seconds, for leases; it only counts time in which ranks could have been heard (LeaseClock).
        now: seconds since 1970, from which epochs are derived.
        save: called with the table's dump after each change but heartbeats; if it raises a StateError, a join or the
            draining of a switch is undone.
        quota: limits of a tenant.
        lease_s: a rank without a heartbeat for so long is lost.

    Attributes:
        unsaved: whether the last change could not be saved, or was not made because it could not be; `expire` tries to
            save again.
    """

    def __init__(
        self,
        entries: JobEntries,
        topology: Topology,
        clock: Callable[[], float],
        now: Callable[[], float],
        save: Callable[[dict[str, Any]], None] = lambda dump: None,
        quota: Callable[[str], Quota] = lambda tenant: Quota(),
        lease_s: float = LEASE_S,
    ) -> None:
        self._entries = entries
        self._topology = topology
        self._clock = clock
        self._now = now
        self._saving = save
        self.unsaved = False
        self._quota = quota
        self._lease_s = lease_s
        # A job has the same slots on every switch that it uses.
        self._slots = SlotPool(constants.SLOTS)
        self._shared: int | None = None
        self._ports = SwitchPorts(topology, lambda: self.jobs.values())
        self._ids = NumberPool(range(1, JOB_IDS), "job id")
        self._replicas = NumberPool(range(1, 1024), "replica id")
        self._last_epoch = 0
        self._last_ticket = 0
        self.jobs: dict[str, Job] = {}

    def join(self, name: str, joining: Joining) -> Job:
        """Add a rank or server; the first one creates the job, the last one has the entries installed.

        Raises:
            RequestError: 422 for impossible numbers, 403 for another tenant's job, 409 for a contradiction to the job,
                503 (ShortError) without room for it.
            SwitchError: the entries could not be installed; the rank has not joined.
            StateError: the change could not be saved; the rank has not joined.
        """
        joining.require_legal([each.kind for each in self._topology.switches])
        self._ports.require_host(joining.address)
        self.expire()
        job = self.jobs.get(name)
        who = member_name(joining.rank)
        if job is not None:
            known = self._known(job, joining.rank)
            if known is not None and _is_same_member(job, known, joining):
                joining = replace(joining, tenant=job.tenant, nonce=known.nonce)
            _require_same(job, joining)
            if known is not None:
                self._require_replaceable(job, known, joining)
                if (known.address == joining.address and known.nonce == joining.nonce) or job.state == "ready":
                    self._again(job, known, joining, who)
                    return job
                # A worker that was restarted, maybe on another host, before the job was complete.
                self._forget_rank(job, joining.rank)
        created = job is None
        job = job or self._create(name, joining)
        installed = False
        try:
            self._add(job, joining)
            installed = self._complete(job)
            self._save()
        except Exception as error:
            self._note(error)
            if installed:
                self._take_back(job)
            self._forget_rank(job, joining.rank)
            if created:
                self._forget(job)
            raise
        return job

    @staticmethod
    def _known(job: Job | None, rank: int) -> Rank | None:
        if job is None:
            return None
        return job.server if rank == constants.RANK_ALL else job.ranks.get(rank)

    def _require_replaceable(self, job: Job, known: Rank, joining: Joining) -> None:
        """Check that a rank that has joined already joins again, or has died before its job was complete.

        Raises:
            RequestError: 409, or 503 while the one that joined may have died.
        """
        if known.nonce == joining.nonce:
            return
        who = f"{member_name(known.rank)} of job {job.name}"
        if job.state == "ready":
            raise RequestError(
                409,
                f"{who} has already joined from {known.address}:{known.udp_ports[0]}; if it was you, send your token",
            )
        silent_s = self._clock() - known.heartbeat
        if known.state == "joined" and silent_s < REPLACED_S:
            raise RequestError(
                503, f"{who} has already joined; should it have died, try again in {REPLACED_S:.0f} s", REPLACED_S
            )

    def _again(self, job: Job, known: Rank, joining: Joining, who: str) -> None:
        """A member that has joined already: it repeats itself, or was restarted and has other UDP ports."""
        if known.address != joining.address:
            raise RequestError(409, f"{who} of job {job.name} has already joined from {known.address}, on another port")
        before, after = (known.udp_ports, known.mac), (list(joining.udp_ports), joining.mac)
        if before != after:
            if job.state == "ready":
                self._entries.remove(job)
            known.udp_ports, known.mac = after
            forget_port(known)
            installed = False
            try:
                if job.state == "ready":
                    self._entries.install(job)
                    installed = True
                self._save()
            except Exception as error:
                self._note(error)
                self._move_back(job, known, before, installed)
                raise
        known.heartbeat = self._clock()
        known.state = "joined"  # Also one that left: it may have given up just as the job became ready.

    def _move_back(self, job: Job, member: Rank, before: tuple[list[int], int | None], installed: bool) -> None:
        """Undo a change of a member's UDP ports; a ready job whose entries cannot be put back is over."""
        try:
            if installed:
                self._entries.remove(job)
            member.udp_ports, member.mac = before
            if job.state == "ready":
                self._entries.install(job)
        except (SwitchError, StateError):
            self._forget(job)

    # ---- admission --------------------------------------------------------------------------------------------

    def _create(self, name: str, joining: Joining) -> Job:
        """A new job with all that it needs, or in the queue."""
        self._ports.require_port(joining, joining.policy == "shared" or joining.rank == constants.RANK_ALL)
        last_epoch = max(self._last_epoch + 1, int(self._now()))
        job = Job(
            name,
            0,
            last_epoch & 0xFFFFFFFF,
            joining.world_size,
            joining.policy,
            [],
            joining.slots,
            len(joining.udp_ports),
        )
        job.tenant, job.priority = joining.tenant, joining.priority
        try:
            ahead = [other for other in self.queue if other.priority >= job.priority]
            if ahead:
                raise ShortError(f"{len(ahead)} jobs are queued before {name}: wait for them, or join the queue")
            self._reserve(job)
        except ShortError:
            if not joining.queue:
                raise
            self._last_ticket += 1
            job.state, job.ticket = "queued", self._last_ticket
        self.jobs[name], self._last_epoch = job, last_epoch
        return job

    def _reserve(self, job: Job) -> None:
        """Reserve all that a job needs, or nothing.

        Raises:
            RequestError: 422, there will never be room for it.
            ShortError: there is no room now; the message says what is short.
        """
        try:
            self._quota(job.tenant).require_room(job, self.jobs.values())
            job.job_id = self._ids.take()
            self._ports.keep(job)
            for number in range(job.pool_count):
                job.pools.append(self._pool(job, number))
            leaves = {above for place in job.kept for above in self._topology.path(place[0])}
            ways = job.pool_count - 1 if job.policy in POOL_PER_RANK else job.pool_count
            below = sum(self._topology.switch(name).parent is not None for name in leaves)
            job.spare = self._replicas.take_all(job.world_size * ways + below * job.pool_count)
            if len(job.kept) == job.world_size:
                self._require_members_fit([place[0] for place in job.kept])
        except RequestError:
            self._release(job)
            raise

    def _pool(self, job: Job, number: int) -> Pool:
        group = job.job_id + JOB_IDS * number
        if job.policy != "shared":
            return Pool(self._slots.take(job.slots), job.slots, group)
        if self._shared is None:
            self._shared = self._slots.take(SLOTS_PER_POOL)
        return Pool(0, SLOTS_PER_POOL, group, self._shared | self._hash(job))

    @staticmethod
    def _hash(job: Job) -> int:
        """Offset of a job's slots in the pool; combined by xor, so two slots of a job never collide."""
        return zlib.crc32(struct.pack(">HI", job.job_id, job.epoch)) % SLOTS_PER_POOL

    @property
    def queue(self) -> list[Job]:
        """Jobs that wait for room, the next one first."""
        queued = (job for job in self.jobs.values() if job.state == "queued")
        return sorted(queued, key=lambda job: (-job.priority, job.ticket))

    def promote(self) -> None:
        """Give queued jobs what they need while there is room for the first one.

        Raises:
            StateError: the change could not be saved; the job stays in the queue.
        """
        for job in self.queue:
            try:
                self._reserve(job)
            except ShortError:
                return
            except RequestError:
                continue  # A quota has become too small for it; it ends when its ranks give up.
            job.state = "waiting"
            installed = False
            try:
                for member in job.everybody:
                    self._place(job, member)
                installed = self._complete(job)
                self._save()
            except (RequestError, SwitchError, StateError) as error:
                self._note(error)
                if installed:
                    self._take_back(job)
                self._release(job)
                job.state = "queued"
                if isinstance(error, StateError):
                    raise
                return

    # ---- members ----------------------------------------------------------------------------------------------

    def _add(self, job: Job, joining: Joining) -> None:
        now = self._clock()
        member = Rank(joining.rank, joining.address, list(joining.udp_ports), joining.mac, "", 0, [], now, now)
        member.nonce = joining.nonce or secrets.token_hex(SECRET_BYTES)
        if job.state != "queued":
            self._place(job, member)
        if joining.rank == constants.RANK_ALL:
            job.server = member
        else:
            job.ranks[joining.rank] = member

    def _place(self, job: Job, member: Rank) -> None:
        """Give a member its port and replica ids."""
        is_server = member.rank == constants.RANK_ALL
        # A server is at the root, where the final sums are; so are the workers if slots are shared there.
        at_root = is_server or job.policy == "shared"
        member.switch, member.switch_port = self._ports.take(job, member, at_root)
        if not is_server:
            own = member.rank if job.policy in POOL_PER_RANK else None
            member.replicas = [0 if number == own else self._replica(job) for number in range(len(job.pools))]

    def _replica(self, job: Job) -> int:
        return job.spare.pop(0) if job.spare else self._replicas.take()

    def _complete(self, job: Job) -> bool:
        """Install a job's entries if all members are there; returns whether they were installed."""
        if job.state != "waiting" or not job.complete:
            return False
        try:
            self._require_members_fit([rank.switch for rank in job.ranks.values()])
            for name in {above for rank in job.ranks.values() for above in self._topology.path(rank.switch)}:
                if self._topology.switch(name).parent is not None:
                    job.leaves[name] = [self._replica(job) for _ in job.pools]
            self._entries.install(job)
        except Exception:
            self._forget_leaves(job)
            raise
        job.state = "ready"
        return True

    def _take_back(self, job: Job) -> None:
        """Undo the installation of a job that could not be saved."""
        with contextlib.suppress(SwitchError, StateError):  # The session is dirty: the fabric will be recovered.
            self._entries.remove(job)
        self._forget_leaves(job)
        job.state = "waiting"

    def _require_members_fit(self, switches: list[str]) -> None:
        """Check the number of members of each switch, which are ranks and leaves, for ranks on these switches."""
        used = {above for name in switches for above in self._topology.path(name)}
        for switch in self._topology.switches:
            below = sum(child.name in used for child in self._topology.children(switch.name))
            members = switches.count(switch.name) + below
            if members > switch.kind.ranks:
                raise RequestError(
                    422, f"{members} ranks on {switch.name}: it sums {switch.kind.ranks}; more need a tree"
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
            raise RequestError(404, f"epoch {epoch} of job {name} is over")
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

    def owned(self, name: str, rank: int, token: str | None, epoch: int | None = None) -> tuple[Job, Rank]:
        """The same, for a request that only the member itself may make.

        Raises:
            RequestError: 404, 401 without its token, 403 with another one.
        """
        job, member = self.member(name, rank, epoch)
        require_owner(job, member, token)
        return job, member

    def owns(self, name: str, rank: int, token: str | None) -> bool:
        """Whether that is the token of a member that has joined."""
        job = self.jobs.get(name)
        known = self._known(job, rank)
        return job is not None and known is not None and is_owner(job, known, token)

    def levels(self, job: Job, rank: Rank) -> int:
        """How many switches a contribution of a rank passes, with the one where the sum is taken."""
        return levels(job, self._topology, rank)

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

        Raises:
            RequestError: 404.
            SwitchError: a switch is gone; the rank has left all the same.
            StateError: the end of the job could not be saved; the rank has not left.
        """
        job, member = self.member(name, rank, epoch)
        before, member.state = member.state, "left"
        try:
            if job.over:
                self._end(job)
            elif job.state != "ready":
                self._forget_rank(job, rank)
        except StateError:
            member.state = before
            raise
        finally:
            self.changed()

    def expire(self) -> None:
        """Mark ranks whose lease is over as lost; end jobs without a living rank; look at the queue.

        Raises:
            SwitchError: a switch is gone; jobs have ended all the same.
            StateError: the end of a job could not be saved; it has not ended.
        """
        before = len(self.jobs)
        try:
            for job in list(self.jobs.values()):
                for rank in job.everybody:
                    if rank.state == "joined" and self._clock() - rank.heartbeat > self._lease_s:
                        rank.state = "lost"
                if job.over:
                    self._end(job)
        finally:
            if len(self.jobs) != before or self.queue or self.unsaved:
                self.changed()

    def end(self, name: str) -> None:
        """End a job, whatever its ranks do.

        Raises:
            RequestError: 404.
            SwitchError, StateError: see `leave`.
        """
        try:
            self._end(self.find(name))
        finally:
            self.changed()

    def end_all(self) -> None:
        """End every job, because the controller exits."""
        for job in list(self.jobs.values()):
            self._end(job)
        self._save()

    def changed(self) -> None:
        """Save what has been freed, and give it to queued jobs.

        Nothing is refused if it cannot be saved: an earlier controller's jobs that are over do no harm, for their
        entries are known to be incomplete (JobEntries.remove), or their leases expire.
        """
        with contextlib.suppress(StateError):
            self._save()
            self.promote()

    # ---- drained switches -------------------------------------------------------------------------------------

    @property
    def drained(self) -> set[str]:
        return set(self._ports.drained)

    def drain(self, switch: str, drained: bool = True) -> None:
        """Let a switch, and those below it, take no new jobs; or let it take some again.

        Raises:
            RequestError: 404, there is no such switch.
            StateError: the change could not be saved, and was not made.
        """
        names = [each.name for each in self._topology.switches]
        if switch not in names:
            raise RequestError(404, f"there is no switch {switch}; switches: {', '.join(names)}")
        before = self.drained
        (self._ports.drained.add if drained else self._ports.drained.discard)(switch)
        try:
            self._save()
        except StateError:
            self._ports.drained = before
            raise
        if not drained:
            self.changed()

    def jobs_on(self, switch: str) -> list[str]:
        """Names of jobs with ranks, or room kept for ranks, on a switch or below it."""
        return sorted(
            job.name
            for job in self.jobs.values()
            if any(switch in self._topology.path(name) for name in self._switches_of(job))
        )

    @staticmethod
    def _switches_of(job: Job) -> set[str]:
        members = {rank.switch for rank in job.everybody if rank.switch}
        return members | {place[0] for place in job.kept} | ({job.server_kept[0]} if job.server_kept else set())

    # ---- ends -------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget running jobs without telling the switches, which have been or will be restarted. Waiting jobs stay."""
        for job in list(self.jobs.values()):
            if job.state == "ready":
                self._forget(job)
        self.changed()

    def _end(self, job: Job) -> None:
        try:
            if job.state == "ready":
                self._entries.remove(job)
        except StateError as error:
            self._note(error)
            raise  # Nothing has been removed.
        except Exception:
            self._forget(job)
            raise
        self._forget(job)

    def _forget_rank(self, job: Job, rank: int) -> None:
        """Forget a member; what it had is kept for who comes in its place."""
        if rank == constants.RANK_ALL:
            member, job.server = job.server, None
        else:
            member = job.ranks.pop(rank, None)
        if member is not None:
            self._displace(job, member)

    def _displace(self, job: Job, member: Rank) -> None:
        if member.switch:
            place, member.switch = (member.switch, member.switch_port), ""
            self._ports.give_back(job, member.rank, place)
        job.spare += filter(None, member.replicas)
        member.replicas = []

    def _forget_leaves(self, job: Job) -> None:
        for replicas in job.leaves.values():
            job.spare += replicas
        job.leaves.clear()

    def _release(self, job: Job) -> None:
        """Give back all that a job has; its members stay."""
        for member in job.everybody:
            self._displace(job, member)
        self._forget_leaves(job)
        self._ports.give_all_back(job)
        for replica in job.spare:
            self._replicas.give_back(replica)
        if job.policy != "shared":
            for pool in job.pools:
                self._slots.give_back(pool.first_slot)
        if job.job_id:
            self._ids.give_back(job.job_id)
        job.spare, job.pools, job.job_id = [], [], 0
        others = (other for other in self.jobs.values() if other is not job)
        if self._shared is not None and not any(other.policy == "shared" and other.pools for other in others):
            self._slots.give_back(self._shared)
            self._shared = None

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.name, None)
        self._release(copy.deepcopy(job))  # Whoever still looks at the job sees what it was.

    def _note(self, error: Exception) -> None:
        """Remember that the state cannot be written, also where that was found before anything was changed."""
        self.unsaved |= isinstance(error, StateError)

    def _save(self) -> None:
        self.unsaved = True
        self._saving(self.dump())
        self.unsaved = False

    # ---- state across restarts of the controller -------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Everything that a restarted controller must know, as JSON values."""
        return {
            "last_epoch": self._last_epoch,
            "drained": sorted(self._ports.drained),
            "jobs": [asdict(job) for job in self.jobs.values()],
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        """Restore an earlier controller's jobs; every lease starts again."""
        self._last_epoch = dumped["last_epoch"]
        names = {switch.name for switch in self._topology.switches}
        self._ports.drained = names & set(dumped["drained"])
        for described in dumped["jobs"]:
            ranks = {int(number): self._revived(rank) for number, rank in described["ranks"].items()}
            server = self._revived(described["server"]) if described["server"] else None
            pools = [Pool(**pool) for pool in described["pools"]]
            kept = [(switch, port) for switch, port in described["kept"]]
            server_kept = tuple(described["server_kept"]) if described["server_kept"] else None
            same = {"ranks": ranks, "server": server, "pools": pools, "kept": kept, "server_kept": server_kept}
            job = Job(**{**described, **same})
            self.jobs[job.name] = job
            self._last_ticket = max(self._last_ticket, job.ticket)
            if job.state != "queued":
                self._reserve_again(job)

    def _reserve_again(self, job: Job) -> None:
        self._ids.reserve(job.job_id)
        for pool in job.pools:
            if job.policy == "shared":
                self._shared = pool.offset & -SLOTS_PER_POOL
                self._slots.reserve(self._shared, SLOTS_PER_POOL)
            else:
                self._slots.reserve(pool.first_slot, pool.slots)
        self._ports.reserve(job)
        for replicas in [*(rank.replicas for rank in job.everybody), *job.leaves.values(), job.spare]:
            for replica in replicas:
                self._replicas.reserve(replica)

    def restore_epoch(self, last_epoch: int) -> None:
        """Go on after an earlier controller's epochs, though not with its jobs."""
        self._last_epoch = max(self._last_epoch, last_epoch)

    def _revived(self, rank: dict[str, Any]) -> Rank:
        return Rank(**{**rank, "heartbeat": self._clock(), "progress": self._clock(), "silent_since": None})


def _is_same_member(job: Job, known: Rank, joining: Joining) -> bool:
    """Whether a member joins again: it has its token, or repeats its nonce."""
    return is_owner(job, known, joining.token) or bool(joining.nonce and joining.nonce == known.nonce)


def _require_same(job: Job, joining: Joining) -> None:
    """Check that a member wants the same job as those before it.

    Raises:
        RequestError: 403 for another tenant's job, 409 for another kind of job.
    """
    who = member_name(joining.rank)
    if job.tenant != joining.tenant:
        raise RequestError(403, f"job {job.name} is another tenant's: choose another name")
    if job.world_size != joining.world_size:
        raise RequestError(409, f"job {job.name} has world size {job.world_size}; {who} came with {joining.world_size}")
    if job.policy != joining.policy:
        raise RequestError(409, f"job {job.name} has policy {job.policy}; {who} came with {joining.policy}")
    if job.pool_count != len(joining.udp_ports):
        raise RequestError(
            409,
            f"job {job.name} has {job.pool_count} pools of slots; {who} came with {len(joining.udp_ports)} UDP ports",
        )
    if job.slots != joining.slots:
        raise RequestError(409, f"job {job.name} has {job.slots} slots per pool; {who} came with {joining.slots}")
