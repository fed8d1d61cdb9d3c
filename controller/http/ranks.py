"""How ranks and servers join a job, keep their place, and leave."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.errors import RequestError
from controller.http import answers
from controller.http.models import Heartbeat, Join
from controller.http.refusals import refusals
from controller.http.service import Service
from hostlib.protocol import constants

JOINING: dict[str, Any] = {
    "response_model": answers.Place,
    "response_model_exclude_none": True,
    "responses": refusals(404, 409, 413, 422, 503),
}
POLLING: dict[str, Any] = {**JOINING, "responses": refusals(404, 422, 503)}
BEATING: dict[str, Any] = {"response_model": answers.JobState, "responses": refusals(404, 413, 422)}
LEAVING: dict[str, Any] = {"response_model": answers.Left, "responses": refusals(404, 422, 503)}


def rank_routes(service: Service) -> APIRouter:
    """Routes of ranks, and of servers, which have the same under a name of their own."""
    router = APIRouter(prefix="/v1")

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

    @router.post("/jobs/{job}/ranks/{rank}", **JOINING)
    def join(job: str, rank: int, body: Join) -> dict[str, Any]:
        """Join a rank; repeating the request is allowed. Once all ranks have joined, `state` is `ready` and the answer
        names its slots.
        """
        return joined(job, _worker(rank), body)

    @router.get("/jobs/{job}/ranks/{rank}", **POLLING)
    def place(job: str, rank: int) -> dict[str, Any]:
        """The same answer as to joining; poll it to wait for the other ranks. Counts as a heartbeat."""
        return polled(job, _worker(rank))

    @router.post("/jobs/{job}/ranks/{rank}/heartbeat", **BEATING)
    def heartbeat(job: str, rank: int, body: Heartbeat, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat; 404 if the job, or the given epoch, is over."""
        return beaten(job, _worker(rank), body, epoch)

    @router.delete("/jobs/{job}/ranks/{rank}", **LEAVING)
    def leave(job: str, rank: int, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job; 404 if the job, or the given epoch, is over."""
        return left(job, _worker(rank), epoch)

    @router.post("/jobs/{job}/server", **JOINING)
    def join_server(job: str, body: Join) -> dict[str, Any]:
        """Join the server of a job, as a rank does."""
        return joined(job, constants.RANK_ALL, body)

    @router.get("/jobs/{job}/server", **POLLING)
    def place_server(job: str) -> dict[str, Any]:
        """The same answer as to joining."""
        return polled(job, constants.RANK_ALL)

    @router.post("/jobs/{job}/server/heartbeat", **BEATING)
    def heartbeat_server(job: str, body: Heartbeat, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat."""
        return beaten(job, constants.RANK_ALL, body, epoch)

    @router.delete("/jobs/{job}/server", **LEAVING)
    def leave_server(job: str, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job."""
        return left(job, constants.RANK_ALL, epoch)

    return router


def _worker(rank: int) -> int:
    if rank == constants.RANK_ALL:
        raise RequestError(422, f"rank {rank} is reserved: a server joins at /v1/jobs/NAME/server")
    return rank
