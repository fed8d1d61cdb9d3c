"""The controller's state, as the HTTP API reads and changes it."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from controller.errors import RequestError
from controller.events.event_log import EventLog, Kind
from controller.events.job_watch import JobWatch
from controller.jobs.job import POOL_PER_RANK, Job, Rank
from controller.jobs.job_table import JobTable
from controller.jobs.port_check import judge_port, port_text
from controller.rates import MOST_REQUESTS, Rates
from hostlib.protocol.framing import ip_bytes


class SwitchStatus(Protocol):
    """The switches' status, as the API reads it."""

    def require_up(self) -> None: ...

    def describe(self) -> list[dict[str, Any]]: ...

    def describe_cables(self) -> list[dict[str, Any]]: ...

    def answers(self, switch: str) -> bool: ...


@dataclass(slots=True)
class Service:
    """The controller's state behind the API; one lock guards all of it.

    Attributes:
        endpoints: (switch, port) -> the ADDRESS:PORT where a rank on that port reaches the fabric.
        events: the log of what happens.
        tenant_of: whose token that is; None if it is nobody's.
        token_required: whether joining needs a tenant's token.
        rate: requests a second of a client, and joins a second of a tenant; `rates` counts them.
        operator: the token of whoever may end jobs and drain switches.
        require_primary: raises a DeposedError if another controller is the primary.
        disk_full: whether there is no room left for the controller's state.
    """

    version: str
    kind: str
    elements: int
    slots: int
    jobs: JobTable
    switches: SwitchStatus
    endpoints: dict[tuple[str, int], str]
    clock: Callable[[], float]
    lock: threading.RLock = field(default_factory=threading.RLock)
    events: EventLog = field(default_factory=lambda: EventLog(None, time.time))
    tenant_of: Callable[[str], str | None] = lambda token: None
    token_required: bool = False
    rate: int = MOST_REQUESTS
    operator: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    require_primary: Callable[[], None] = lambda: None
    disk_full: Callable[[], bool] = lambda: False
    rates: Rates = field(init=False)
    _watch: JobWatch = field(init=False)
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _recent: tuple[float, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self._watch = JobWatch(self.events)
        self.rates = Rates(self.rate, time.monotonic)
        self._watch.adopt(self.jobs.jobs.values())

    @contextmanager
    def changing(self, why: str | None = None) -> Iterator[JobTable]:
        """Hold the lock, and record what has changed.

        Args:
            why: the reason for jobs' end, where it is not what their ranks did.
        """
        with self.lock:
            try:
                yield self.jobs
            finally:
                self._watch.compare(self.jobs.jobs.values(), why)

    def tenant(self, token: str | None) -> str:
        """The tenant that joins with a token; the empty one without, where that is possible.

        Raises:
            RequestError: where a token is required: 401 without one, 403 with one that is nobody's.
        """
        tenant = None if token is None else self.tenant_of(token)
        if tenant is not None or not self.token_required:
            return tenant or ""
        if token is None:
            raise RequestError(401, "joining needs a tenant's token, in NETFOLD_CONTROLLER_TOKEN: ask the operator")
        raise RequestError(403, "that is no tenant's token: controller token list shows whose there are")

    def require_rate(self, tenant: str) -> None:
        """Count a tenant's request to join; without tokens there are no tenants to tell apart.

        Raises:
            RequestError: 429, it is one too many.
        """
        if tenant:
            self.rates.require(f"tenant {tenant}")

    def is_operator(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.operator.encode())

    def require_operator(self, token: str | None) -> None:
        """Check that a request comes from the operator.

        Raises:
            RequestError: 401 without a token, 403 with another one.
        """
        if token is None:
            raise RequestError(401, "only the operator may do this: controller drain and controller end have the token")
        if not self.is_operator(token):
            raise RequestError(403, "that is not the operator's token: controller drain and controller end have it")

    def place(self, job: Job, rank: Rank) -> dict[str, Any]:
        """The description of a rank's place in its job."""
        if job.state == "queued":
            return {"state": job.state, "queue_position": self.jobs.queue.index(job) + 1}
        address, _, port = self.endpoints[rank.switch, rank.switch_port].rpartition(":")
        reply = {
            "state": job.state,
            "fabric": {"address": address, "port": int(port)},
            "switch": rank.switch,
            "switch_port": rank.switch_port,
        }
        if job.state == "ready":
            reply |= {
                "job_id": job.job_id,
                "epoch": job.epoch,
                "secret": job.secret,
                "rank": rank.rank,
                "world_size": job.world_size,
                "policy": job.policy,
                "pools": [{"first_slot": pool.first_slot, "slots": pool.slots} for pool in job.pools],
                "elements": self.elements,
                "levels": self.jobs.levels(job, rank),
            }
            if job.server is not None:
                reply["server"] = _ends(job.server)
            if rank is job.server or job.policy in POOL_PER_RANK:
                reply["workers"] = [_ends(worker) for _, worker in sorted(job.ranks.items())]
        return reply

    def judge_port(self, job: Job, member: Rank, echoes: Sequence[int | None]) -> None:
        """Take what came back to a member from its switch port, and record what that shows.

        Raises:
            RequestError: see controller.jobs.port_check.
        """
        before = member.port, member.refuted
        judge_port(job, member, echoes, self.clock(), self.switches.answers(member.switch))
        if (member.port, member.refuted) != before and "silent" in (member.port, before[0]):
            kind: Kind = "port-right" if member.port == "right" else "port-wrong"
            self.events.append(kind, port_text(job, member), job.name, member.rank, member.switch)

    def describe(self, job: Job) -> dict[str, Any]:
        ranks = [
            {
                "rank": rank.rank,
                "address": f"{rank.address}:{rank.udp_ports[0]}",
                "switch": rank.switch,
                "switch_port": rank.switch_port,
                "last_heartbeat_s": round(self.clock() - rank.heartbeat, 1),
                "last_progress_s": round(self.clock() - rank.progress, 1),
                "position": rank.position,
                "state": rank.state,
                "port": rank.port,
                "port_text": port_text(job, rank),
            }
            for rank in sorted(job.everybody, key=lambda r: r.rank)
        ]
        queued = job.state == "queued"
        return {
            "name": job.name,
            "tenant": job.tenant,
            "priority": job.priority,
            "queue_position": self.jobs.queue.index(job) + 1 if queued else None,
            "job_id": job.job_id,
            "world_size": job.world_size,
            "policy": job.policy,
            "state": job.state,
            "pools": [{"first_slot": pool.first_slot, "slots": pool.slots} for pool in job.pools],
            "ranks": ranks,
        }

    def describe_jobs(self) -> list[dict[str, Any]]:
        with self.lock:
            return [self.describe(job) for job in self.jobs.jobs.values()]

    def require_mtu(self, who: str, mtu: int | None) -> None:
        """Check that a rank's interface sends the switches' packets whole.

        Raises:
            RequestError: 422; it does not.
        """
        needed = ip_bytes(self.elements)
        if mtu is not None and needed > mtu:
            raise RequestError(
                422,
                f"{who}: packets of {self.elements} elements have {needed} bytes, and its interface sends {mtu}: raise the "
                "MTU of all links, or controller start with fewer --elements",
            )

    def describe_slots(self) -> dict[str, Any]:
        """The ranges of slots that jobs have."""
        ranges = []
        used: set[int] = set()
        with self.lock:
            for job in self.jobs.jobs.values():
                shared = job.policy == "shared"
                for pool in job.pools:
                    # A shared pool's offset is its first slot and, in the lower bits, the hash of the job.
                    first = pool.offset & -pool.slots if shared else pool.first_slot
                    ranges.append({"job": job.name, "first_slot": first, "slots": pool.slots, "shared": shared})
                    used.update(range(first, first + pool.slots))
        ranges.sort(key=lambda taken: (taken["first_slot"], taken["job"]))
        return {"slots": self.slots, "used": len(used), "ranges": ranges}

    def status(self) -> dict[str, Any]:
        """Status of switches and jobs. Counters are per switch; `events` and `drops` are sums over all switches."""
        switches = self.switches.describe()
        with self.lock:
            for switch in switches:
                switch |= {"draining": switch["name"] in self.jobs.drained, "jobs": self.jobs.jobs_on(switch["name"])}
        return {
            "version": self.version,
            "kind": self.kind,
            "elements": self.elements,
            "slots": self.slots,
            "up": all(switch["up"] for switch in switches),
            "time_s": time.time(),
            "switches": switches,
            "cables": self.switches.describe_cables(),
            "jobs": self.describe_jobs(),
            "events": _summed(switch["events"] for switch in switches),
            "drops": _summed(switch["drops"] for switch in switches),
        }

    def recent_status(self, age_s: float) -> dict[str, Any]:
        """A status that is at most that old; who asks while somebody looks gets what that one sees."""
        with self._looking:
            if self._recent is None or self.clock() - self._recent[0] > age_s:
                self._recent = self.clock(), self.status()
            return self._recent[1]


def _ends(member: Rank) -> dict[str, Any]:
    return {"address": member.address, "udp_ports": member.udp_ports}


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
