"""Assign switch ports to jobs, and to their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from controller.errors import RequestError, ShortError
from controller.jobs.allocation import NumberPool
from controller.jobs.job import Job, Joining, Place, Rank, member_name
from controller.topology import Switch, Topology
from hostlib.protocol import constants


class SwitchPorts:
    """The ports available to ranks, and their users.

    Args:
        jobs: returns all jobs.

    Attributes:
        drained: switches that take no new jobs, and lead none to switches below them.
    """

    def __init__(self, topology: Topology, jobs: Callable[[], Iterable[Job]]) -> None:
        self._topology = topology
        self._jobs = jobs
        self.drained: set[str] = set()
        # Leaves first: a rank is next to its own switch, the server at the root.
        places = [(s.name, n) for s in reversed(topology.switches) for n in sorted(s.ports)]
        self._free = NumberPool(sorted(places, key=lambda place: self._order(place[0])), "switch port")

    def _order(self, switch: str) -> tuple[int, int]:
        depth = len(self._topology.path(switch))
        return -depth, [s.name for s in self._topology.switches].index(switch)

    def require_host(self, address: str) -> None:
        """Check that an address may be a host's: switches drop what hosts send from the fabric's own.

        Raises:
            RequestError: 422.
        """
        switch = next((switch for switch in self._topology.switches if switch.address == address), None)
        if switch is not None:
            raise RequestError(422, f"{address} is the address of {switch.name}: join with the host's own")

    def keep(self, job: Job) -> None:
        """Keep ports for all members of a new job.

        Members on known hosts get their hosts' ports when they join; there must be enough of them, or of others.

        Raises:
            RequestError: 422, the fabric is too small.
            ShortError: too few ports are free.
        """
        at_root = job.policy == "shared"
        workers, by_workers = self._available(at_root)
        roots, by_server = self._available(at_root=True)
        self._require_fabric(job, at_root)
        wanted = max(0, job.world_size - by_workers)
        kept, others = workers[:wanted], workers[wanted:]
        server = next((place for place in others if place in roots), None)
        by_hosts = job.has_server and by_server > 0
        enough = len(workers) + by_workers >= job.members and len(kept) == wanted
        if not enough or (job.has_server and server is None and not by_hosts):
            where = f" on {self._topology.root.name}" if at_root else ""
            drained = f"; no new jobs on {', '.join(sorted(self.drained))}, which drains" if self.drained else ""
            server_needs = f", one of them on {self._topology.root.name}" if job.has_server and not at_root else ""
            raise ShortError(
                f"job {job.name} needs {job.members} switch ports{where}{server_needs}; "
                f"free: {len(workers) + by_workers}{drained}: wait for a job to end"
            )
        for place in kept:
            self._free.reserve(place)
        job.kept = kept
        if server is not None and not by_hosts and job.has_server:
            self._free.reserve(server)
            job.server_kept = server

    def _require_fabric(self, job: Job, at_root: bool) -> None:
        """Raise RequestError if not even an empty fabric has enough ports."""
        ports = sum(len(switch.ports) for switch in self._switches(at_root))
        if job.members > ports:
            where = f"switch {self._topology.root.name}" if at_root else "fabric"
            raise RequestError(422, f"job {job.name} needs {job.members} switch ports; the {where} has {ports}")
        if job.has_server and not self._topology.root.ports:
            raise RequestError(422, f"job {job.name} has a server, and {self._topology.root.name} has no port for it")

    def _available(self, at_root: bool) -> tuple[list[Place], int]:
        """(free ports for anybody, how many ports of known hosts a new job may use)."""
        switches = [s for s in self._switches(at_root) if not self.closed(s.name)]
        hosts = {(s.name, port) for s in switches for port in s.hosts}
        names = {s.name for s in switches}
        free = [place for place in self._free.free if place[0] in names]
        shared = {(s.name, port) for s in switches for port in s.hosts if port in s.macs}
        return [place for place in free if place not in hosts], len(hosts & ({*free} | shared))

    def _switches(self, at_root: bool) -> list[Switch]:
        return [s for s in self._topology.switches if not at_root or s.name == self._topology.root.name]

    def closed(self, name: str) -> bool:
        """Whether a switch takes no new jobs: it, or one on its way to the root, is drained."""
        return not self.drained.isdisjoint(self._topology.path(name))

    def take(self, job: Job, joining: Joining | Rank, at_root: bool) -> Place:
        """Assign a port to a rank: its host's port if the topology knows it, else one of those kept for its job.

        Raises:
            RequestError: 422 for an unknown host, 409 or 503 for a host whose port is in use.
        """
        switches = self._switches(at_root)
        hosts = {address: (s.name, port) for s in switches for port, address in s.hosts.items()}
        place = hosts.get(joining.address)
        if place is not None:
            self._require_mac(place, joining)
            if self.closed(place[0]) and not any(rank.switch == place[0] for rank in job.everybody):
                raise ShortError(f"{place[0]}, where host {joining.address} is, drains: it takes no new jobs")
            if self._is_free(place, job, joining):
                self._free.take(lambda p: p == place)
            return place
        self.require_port(joining, at_root)
        anybodys = {(s.name, port) for s in switches for port in s.ports if port not in s.hosts}
        if is_server(joining) and job.server_kept is not None:
            place, job.server_kept = job.server_kept, None
            return place
        if not is_server(joining) and job.kept:
            return job.kept.pop(0)
        return self._free.take(lambda p: p in anybodys and not self.closed(p[0]))

    def require_port(self, joining: Joining | Rank, at_root: bool) -> None:
        """Check that there is a port for a rank, if only it were free.

        Raises:
            RequestError: 422, all ports are of hosts, and none of them is the rank's.
        """
        switches = self._switches(at_root)
        hosts = [address for s in switches for address in s.hosts.values()]
        if hosts and joining.address not in hosts and all(port in s.hosts for s in switches for port in s.ports):
            at = f" on {switches[0].name}" if at_root else ""
            raise RequestError(422, f"no switch port{at} has the host {joining.address}; hosts: {', '.join(hosts)}")

    def reserve(self, job: Job) -> None:
        """Mark a job's ports as assigned by an earlier controller process."""
        for place in [*((rank.switch, rank.switch_port) for rank in job.everybody), *_kept(job)]:
            self._free.reserve(place)

    def give_back(self, job: Job, rank: int, place: Place) -> None:
        """Release a member's port; it stays in use if other jobs share it. A port that is not a known host's is kept
        for who comes instead.
        """
        if place[1] in self._topology.switch(place[0]).hosts:
            if not any(self._at(other, place) for other in self._jobs()):
                self._free.give_back(place)
        elif rank == constants.RANK_ALL:
            job.server_kept = place
        else:
            job.kept.insert(0, place)

    def give_all_back(self, job: Job) -> None:
        """Release the ports that were kept for members that are not there."""
        for place in _kept(job):
            self._free.give_back(place)
        job.kept, job.server_kept = [], None

    @staticmethod
    def _require_mac(place: Place, joining: Joining | Rank) -> None:
        if joining.mac is None and not IPv4Address(joining.address).is_loopback:
            where = f"port {place[1]} of {place[0]}, where host {joining.address} is,"
            raise RequestError(422, f"{where} needs the host's MAC address: join with mac")

    def _is_free(self, place: Place, job: Job, joining: Joining | Rank) -> bool:
        """Whether a port is free. Jobs share a port if the topology, not a job, installs the route to its host."""
        where = f"port {place[1]} of {place[0]}, where host {joining.address} is,"
        shared = place[1] in self._topology.switch(place[0]).macs
        others = [(other, rank) for other in self._jobs() for rank in self._at(other, place)]
        for other, rank in others:
            who = f"{member_name(rank.rank)} of job {other.name}"
            if other is job:
                raise RequestError(409, f"{where} has {who} already: one rank per port")
            if not shared:
                raise RequestError(503, f"{where} has {who}: wait for that job to end")
        return not others

    @staticmethod
    def _at(job: Job, place: Place) -> list[Rank]:
        return [rank for rank in job.everybody if (rank.switch, rank.switch_port) == place]


def is_server(member: Joining | Rank) -> bool:
    return member.rank == constants.RANK_ALL


def _kept(job: Job) -> list[Place]:
    return [*job.kept, *([job.server_kept] if job.server_kept else [])]
