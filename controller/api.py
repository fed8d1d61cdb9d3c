"""The HTTP/JSON API: ranks join here, and a curl sees what the controller is doing. OpenAPI pages are under /docs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from controller.errors import ControllerError, SwitchError
from controller.job import Job, JobTable, Rank


class Join(BaseModel):
    """What a rank says of itself. `address` and `udp_port`: where its packets come from and results go."""

    model_config = {"extra": "forbid"}
    world_size: int
    address: IPv4Address
    udp_port: int = Field(ge=1, le=65535)


class Heartbeat(BaseModel):
    """A sign of life: the rank's position in its stream of slots."""

    model_config = {"extra": "forbid"}
    position: int = Field(default=0, ge=0)


class Counters(Protocol):
    """What the API reads of a switch."""

    program: str
    p4rt: str

    @property
    def up(self) -> bool: ...

    def counts(self) -> tuple[dict[str, int], dict[str, int]]: ...

    def ports(self) -> dict[int, dict[str, int]]: ...


@dataclass(slots=True)
class Service:
    """The controller's state behind the API; one lock around all of it.

    Attributes:
        endpoints: switch port -> the ADDRESS:PORT where a rank on that port reaches the fabric.
        changed: called with the job table's dump after every change.
    """

    version: str
    kind: str
    elements: int
    slots: int
    jobs: JobTable
    switch: Counters
    endpoints: dict[int, str]
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
        """What a rank is told of its place in a job."""
        address, _, port = self.endpoints[rank.switch_port].rpartition(":")
        told = {"state": job.state, "fabric": {"address": address, "port": int(port)}, "switch_port": rank.switch_port}
        if job.state == "ready":
            told |= {
                "job_id": job.job_id,
                "epoch": job.epoch,
                "rank": rank.rank,
                "world_size": job.world_size,
                "first_slot": job.first_slot,
                "slots": job.slots,
                "elements": self.elements,
            }
        return told

    def describe(self, job: Job) -> dict[str, Any]:
        ranks = [
            {
                "rank": rank.rank,
                "address": f"{rank.address}:{rank.udp_port}",
                "switch_port": rank.switch_port,
                "last_heartbeat_s": round(self.clock() - rank.heartbeat, 1),
                "position": rank.position,
                "state": rank.state,
            }
            for rank in sorted(job.ranks.values(), key=lambda r: r.rank)
        ]
        return {
            "name": job.name,
            "job_id": job.job_id,
            "epoch": job.epoch,
            "world_size": job.world_size,
            "state": job.state,
            "first_slot": job.first_slot,
            "slots": job.slots,
            "ranks": ranks,
        }

    def status(self) -> dict[str, Any]:
        events, drops, ports, up = {}, {}, {}, self.switch.up
        if up:
            try:
                events, drops = self.switch.counts()
                ports = self.switch.ports()
            except SwitchError:
                up = False
        with self.lock:
            jobs = [self.describe(job) for job in self.jobs.jobs.values()]
        return {
            "version": self.version,
            "switch": {
                "kind": self.kind,
                "p4rt": self.switch.p4rt,
                "program": self.switch.program,
                "elements": self.elements,
                "slots": self.slots,
                "up": up,
            },
            "jobs": jobs,
            "events": events,
            "drops": drops,
            "ports": {str(number): counts for number, counts in sorted(ports.items())},
        }


def create_app(service: Service) -> FastAPI:
    """The API over a service."""
    app = FastAPI(title="netfold controller", version=service.version)

    @app.exception_handler(ControllerError)
    def refused(request: Request, wrong: ControllerError) -> JSONResponse:
        return JSONResponse({"detail": str(wrong)}, wrong.status)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, wrong: RequestValidationError) -> JSONResponse:
        first = wrong.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)

    @app.get("/status")
    def status() -> dict[str, Any]:
        """The switch, its counters, and all jobs."""
        return service.status()

    @app.get("/jobs/{job}")
    def job(job: str) -> dict[str, Any]:
        """One job and its ranks."""
        with service.lock:
            return service.describe(service.jobs.find(job))

    @app.post("/jobs/{job}/ranks/{rank}")
    def join(job: str, rank: int, body: Join) -> dict[str, Any]:
        """A rank joins; it may ask again. When all have joined, `state` is `ready` and says which slots are theirs."""
        if not service.switch.up:
            raise SwitchError(f"the switch at {service.switch.p4rt} is gone")
        with service.changing() as jobs:
            joined = jobs.join(job, rank, body.world_size, str(body.address), body.udp_port)
            return service.place(joined, joined.ranks[rank])

    @app.get("/jobs/{job}/ranks/{rank}")
    def place(job: str, rank: int) -> dict[str, Any]:
        """The same answer as joining gave: how a rank waits for the others. Counts as a sign of life."""
        with service.lock:
            found = service.jobs.heartbeat(job, rank, service.jobs.find(job, rank).ranks[rank].position)
            return service.place(found, found.ranks[rank])

    @app.post("/jobs/{job}/ranks/{rank}/heartbeat")
    def heartbeat(job: str, rank: int, body: Heartbeat) -> dict[str, Any]:
        """A sign of life."""
        with service.lock:
            return {"state": service.jobs.heartbeat(job, rank, body.position).state}

    @app.delete("/jobs/{job}/ranks/{rank}")
    def leave(job: str, rank: int) -> dict[str, Any]:
        """A rank is done."""
        with service.changing() as jobs:
            jobs.leave(job, rank)
        return {"state": "left"}

    return app
