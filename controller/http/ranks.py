"""How ranks and servers join a job, keep their place, and leave."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.errors import RequestError
from controller.http import answers
from controller.http.bearer import Bearer
from controller.http.models import Heartbeat, Join
from controller.http.refusals import refusals
from controller.http.service import Service
from controller.jobs.job import member_name
from controller.jobs.rank_token import rank_token
from hostlib.protocol import constants

JOINING: dict[str, Any] = {
    "response_model": answers.Joined,
    "response_model_exclude_none": True,
    "responses": refusals(401, 403, 404, 409, 413, 422, 503),
    "openapi_extra": {"security": [{}]},  # or the rank's token, if it comes back
}
POLLING: dict[str, Any] = {
    "response_model": answers.Place,
    "response_model_exclude_none": True,
    "responses": refusals(401, 403, 404, 422, 503),
}
BEATING: dict[str, Any] = {"response_model": answers.Beaten, "responses": refusals(401, 403, 404, 413, 422)}
LEAVING: dict[str, Any] = {"response_model": answers.Left, "responses": refusals(401, 403, 404, 422, 503)}


def rank_routes(service: Service) -> APIRouter:
    """Routes of ranks, and of servers, which have the same under a name of their own."""
    router = APIRouter(prefix="/v1")

    def joined(job: str, rank: int, body: Join, token: str | None) -> dict[str, Any]:
        service.switches.require_up()
        with service.changing() as jobs:
            tenant = "" if jobs.owns(job, rank, token) else service.tenant(token)
            service.require_rate(tenant)
            service.require_mtu(f"{member_name(rank)} of job {job}", body.mtu)
            jobs.join(job, body.joining(rank, token, tenant))
            found, member = jobs.member(job, rank)
            return {**service.place(found, member), "token": rank_token(found, member)}

    def polled(job: str, rank: int, token: str | None) -> dict[str, Any]:
        with service.lock:
            found, member = service.jobs.owned(job, rank, token)
            service.jobs.heartbeat(job, rank, member.position)
            return service.place(found, member)

    def beaten(job: str, rank: int, body: Heartbeat, token: str | None, epoch: int | None) -> dict[str, Any]:
        with service.lock:
            found, member = service.jobs.owned(job, rank, token, epoch)
            if body.echoes is not None:
                service.judge_port(found, member, body.echoes)
            return {"state": service.jobs.heartbeat(job, rank, body.position).state, "port": member.port}

    def left(job: str, rank: int, token: str | None, epoch: int | None) -> dict[str, Any]:
        with service.changing() as jobs:
            jobs.owned(job, rank, token, epoch)
            jobs.leave(job, rank)
        return {"state": "left"}

    @router.post("/jobs/{job}/ranks/{rank}", **JOINING)
    def join(job: str, rank: int, body: Join, token: Bearer) -> dict[str, Any]:
        """Join a rank. Once all ranks have joined, `state` is `ready` and the answer names its slots.

        Its token is needed for all that the rank does from then on. It may repeat the request with its `nonce` or its
        token, also after it has crashed and come back with other UDP ports.
        """
        return joined(job, _worker(rank), body, token)

    @router.get("/jobs/{job}/ranks/{rank}", **POLLING)
    def place(job: str, rank: int, token: Bearer) -> dict[str, Any]:
        """The same answer as to joining; poll it to wait for the other ranks. Counts as a heartbeat."""
        return polled(job, _worker(rank), token)

    @router.post("/jobs/{job}/ranks/{rank}/heartbeat", **BEATING)
    def heartbeat(job: str, rank: int, body: Heartbeat, token: Bearer, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat; 404 if the job, or the given epoch, is over.

        It may say what came back from the switch (`echoes`), by which the controller knows whether the rank is at its port.
        """
        return beaten(job, _worker(rank), body, token, epoch)

    @router.delete("/jobs/{job}/ranks/{rank}", **LEAVING)
    def leave(job: str, rank: int, token: Bearer, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job; 404 if the job, or the given epoch, is over."""
        return left(job, _worker(rank), token, epoch)

    @router.post("/jobs/{job}/server", **JOINING)
    def join_server(job: str, body: Join, token: Bearer) -> dict[str, Any]:
        """Join the server of a job, as a rank does."""
        return joined(job, constants.RANK_ALL, body, token)

    @router.get("/jobs/{job}/server", **POLLING)
    def place_server(job: str, token: Bearer) -> dict[str, Any]:
        """The same answer as to joining."""
        return polled(job, constants.RANK_ALL, token)

    @router.post("/jobs/{job}/server/heartbeat", **BEATING)
    def heartbeat_server(job: str, body: Heartbeat, token: Bearer, epoch: int | None = None) -> dict[str, Any]:
        """Send a heartbeat."""
        return beaten(job, constants.RANK_ALL, body, token, epoch)

    @router.delete("/jobs/{job}/server", **LEAVING)
    def leave_server(job: str, token: Bearer, epoch: int | None = None) -> dict[str, Any]:
        """Leave the job."""
        return left(job, constants.RANK_ALL, token, epoch)

    return router


def _worker(rank: int) -> int:
    if rank == constants.RANK_ALL:
        raise RequestError(422, f"rank {rank} is reserved: a server joins at /v1/jobs/NAME/server")
    return rank
