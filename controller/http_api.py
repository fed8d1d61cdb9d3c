"""The HTTP/JSON API, for ranks to join and for users to inspect the controller. OpenAPI pages are under /docs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from controller.errors import ControllerError, RequestError
from controller.jobs.job import Job, Joining, Rank
from controller.jobs.job_table import JobTable
from hostlib.protocol import constants
from hostlib.protocol.slots import SLOTS_PER_POOL


class Join(BaseModel):
    """A rank's, or a server's, request to join.

    `address` and `udp_ports`: source of its packets and destination of its results, one port per slot pool. `mac`: only
    if hosts are not on the embedded switch's loopback ports. `policy`: see controller.jobs.job.POLICIES. `slots`: of
    each pool, a power of two; the same for all ranks of a job.
    """

    model_config = {"extra": "forbid"}
    world_size: int
    address: IPv4Address
    udp_ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(min_length=1)
    mac: str | None = Field(default=None, pattern="^([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}$")
    policy: str = "sum"
    slots: int = SLOTS_PER_POOL

    def joining(self, rank: int) -> Joining:
        mac = None if self.mac is None else int(self.mac.replace(":", ""), 16)
        return Joining(rank, self.world_size, str(self.address), tuple(self.udp_ports), mac, self.policy, self.slots)


class Heartbeat(BaseModel):
    """A heartbeat with the rank's position in its stream of slots."""

    model_config = {"extra": "forbid"}
    position: int = Field(default=0, ge=0)


class SwitchStatus(Protocol):
    """The switches' status, as the API reads it."""

    def require_up(self) -> None: ...

    def describe(self) -> list[dict[str, Any]]: ...


@dataclass(slots=True)
class Service:
    """The controller's state behind the API; one lock guards all of it.

    Attributes:
        endpoints: (switch, port) -> the ADDRESS:PORT where a rank on that port reaches the fabric.
        changed: called with the job table's dump after every change.
    """

    version: str
    kind: str
    elements: int
    slots: int
    jobs: JobTable
    switches: SwitchStatus
    endpoints: dict[tuple[str, int], str]
    clock: Callable[[], float]
    changed: Callable[[dict[str, Any]], None]
    lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def changing(self) -> Any:
        with self.lock:
            try:
                yield self.jobs
            finally:
                self.changed(self.jobs.dump())

    def place(self, job: Job, rank: Rank) -> dict[str, Any]:
        """The description of a rank's place in its job."""
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
                "rank": rank.rank,
                "world_size": job.world_size,
                "policy": job.policy,
                "pools": [{"first_slot": pool.first_slot, "slots": pool.slots} for pool in job.pools],
                "elements": self.elements,
                "secret": job.secret,
            }
            if job.server is not None:
                reply["server"] = _ends(job.server)
            if rank is job.server:
                reply["workers"] = [_ends(worker) for _, worker in sorted(job.ranks.items())]
        return reply

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
            }
            for rank in sorted(job.everybody, key=lambda r: r.rank)
        ]
        return {
            "name": job.name,
            "job_id": job.job_id,
            "epoch": job.epoch,
            "world_size": job.world_size,
            "policy": job.policy,
            "state": job.state,
            "pools": [{"first_slot": pool.first_slot, "slots": pool.slots} for pool in job.pools],
            "ranks": ranks,
        }

    def status(self) -> dict[str, Any]:
        """Status of switches and jobs. Counters are per switch; `events` and `drops` are sums over all switches."""
        switches = self.switches.describe()
        with self.lock:
            jobs = [self.describe(job) for job in self.jobs.jobs.values()]
        return {
            "version": self.version,
            "kind": self.kind,
            "elements": self.elements,
            "slots": self.slots,
            "up": all(switch["up"] for switch in switches),
            "switches": switches,
            "jobs": jobs,
            "events": _summed(switch["events"] for switch in switches),
            "drops": _summed(switch["drops"] for switch in switches),
        }


def _ends(member: Rank) -> dict[str, Any]:
    return {"address": member.address, "udp_ports": member.udp_ports}


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def create_app(service: Service) -> FastAPI:
    """Create the API for a service."""
    app = FastAPI(title="netfold controller", version=service.version)

    @app.exception_handler(ControllerError)
    def refused(request: Request, error: ControllerError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, error.status)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)

    @app.get("/")
    def controller() -> dict[str, str]:
        """Identify this server as a controller, without asking its switches."""
        return {"netfold": "controller", "version": service.version}

    @app.get("/status")
    def status() -> dict[str, Any]:
        """Switches, their counters, and all jobs."""
        return service.status()

    @app.get("/jobs/{job}")
    def job(job: str) -> dict[str, Any]:
        """A job and its ranks."""
        with service.lock:
            return service.describe(service.jobs.find(job))

    def joined(job: str, rank: int, body: Join) -> dict[str, Any]:
        service.switches.require_up()
        with service.changing() as jobs:
            jobs.join(job, body.joining(rank))
            return service.place(*jobs.member(job, rank))

    def polled(job: str, rank: int) -> dict[str, Any]:
        with service.lock:
            found, member = service.jobs.member(job, rank)
            service.jobs.heartbeat(job, rank, member.position)
            return service.place(found, member)

    def beaten(job: str, rank: int, body: Heartbeat, epoch: int | None) -> dict[str, Any]:
        with service.lock:
            return {"state": service.jobs.heartbeat(job, rank, body.position, epoch).state}

    def left(job: str, rank: int, epoch: int | None) -> dict[str, Any]:
        with service.changing() as jobs:
            jobs.leave(job, rank, epoch)
        return {"state": "left"}

    @app.post("/jobs/{job}/ranks/{rank}")
    def join(job: str, rank: int, body: Join) -> dict[str, Any]:
        """Join a rank; repeating the request is allowed. Once all ranks have joined, `state` is `ready` and the answer
        names its slots.
        """
        return joined(job, _worker(rank), body)

    @app.get("/jobs/{job}/ranks/{rank}")
    def place(job: str, rank: int) -> dict[str, Any]:
        """The same answer as to joining; poll it to wait for the other ranks. Counts as a heartbeat."""
        return polled(job, _worker(rank))

    @app.post("/jobs/{job}/ranks/{rank}/heartbeat")
    def heartbeat(job: str, rank: int, body: Heartbeat, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat; 404 if the job, or the given epoch, is over."""
        return beaten(job, _worker(rank), body, epoch)

    @app.delete("/jobs/{job}/ranks/{rank}")
    def leave(job: str, rank: int, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job; 404 if the job, or the given epoch, is over."""
        return left(job, _worker(rank), epoch)

    @app.post("/jobs/{job}/server")
    def join_server(job: str, body: Join) -> dict[str, Any]:
        """Join the server of a job, as a rank does."""
        return joined(job, constants.RANK_ALL, body)

    @app.get("/jobs/{job}/server")
    def place_server(job: str) -> dict[str, Any]:
        """The same answer as to joining."""
        return polled(job, constants.RANK_ALL)

    @app.post("/jobs/{job}/server/heartbeat")
    def heartbeat_server(job: str, body: Heartbeat, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat."""
        return beaten(job, constants.RANK_ALL, body, epoch)

    @app.delete("/jobs/{job}/server")
    def leave_server(job: str, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job."""
        return left(job, constants.RANK_ALL, epoch)

    return app


def _worker(rank: int) -> int:
    if rank == constants.RANK_ALL:
        raise RequestError(422, f"rank {rank} is reserved: a server joins at /jobs/NAME/server")
    return rank
