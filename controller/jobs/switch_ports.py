"""Assign switch ports to ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address

from controller.errors import RequestError
from controller.jobs.allocation import NumberPool
from controller.jobs.job import Job, Joining, Rank, member_name
from controller.topology import Topology

Place = tuple[str, int]  # switch name and port number


class SwitchPorts:
    """The ports available to ranks, and their users.

    Args:
        jobs: returns all jobs.
    """

    def __init__(self, topology: Topology, jobs: Callable[[], Iterable[Job]]) -> None:
        self._topology = topology
        self._jobs = jobs
        # Leaves first: a rank is next to its own switch, the server at the root.
        places = [(s.name, n) for s in reversed(topology.switches) for n in sorted(s.ports)]
        self._free = NumberPool(sorted(places, key=lambda place: self._order(place[0])), "switch port")

    def _order(self, switch: str) -> tuple[int, int]:
        depth = len(self._topology.path(switch))
        return -depth, [s.name for s in self._topology.switches].index(switch)

    def take(self, job: Job, joining: Joining, at_root: bool) -> Place:
        """Assign a port to a rank: its host's port if the topology knows it, else any.

        Raises:
            RequestError: 422 for an unknown host, 409 or 503 for a host whose port is in use.
        """
        switches = [s for s in self._topology.switches if not at_root or s.name == self._topology.root.name]
        hosts = {address: (s.name, port) for s in switches for port, address in s.hosts.items()}
        place = hosts.get(joining.address)
        if place is not None:
            self._require_mac(place, joining)
            if self._is_free(place, job, joining):
                self._free.take(lambda p: p == place)
            return place
        anybodys = {(s.name, port) for s in switches for port in s.ports if port not in s.hosts}
        if hosts and not anybodys:
            at = f" on {switches[0].name}" if at_root else ""
            raise RequestError(422, f"no switch port{at} has the host {joining.address}; hosts: {', '.join(hosts)}")
        return self._free.take(lambda p: p in anybodys)

    def reserve(self, place: Place) -> None:
        """Mark a port as assigned by an earlier controller process."""
        self._free.reserve(place)

    def give_back(self, place: Place) -> None:
        """Release a port of a job; it stays in use if other jobs share it."""
        if not any(self._at(other, place) for other in self._jobs()):
            self._free.give_back(place)

    @staticmethod
    def _require_mac(place: Place, joining: Joining) -> None:
        if joining.mac is None and not IPv4Address(joining.address).is_loopback:
            where = f"port {place[1]} of {place[0]}, where host {joining.address} is,"
            raise RequestError(422, f"{where} needs the host's MAC address: join with mac")

    def _is_free(self, place: Place, job: Job, joining: Joining) -> bool:
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
