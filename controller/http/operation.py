"""What operators do: end jobs, and drain switches."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.http import answers
from controller.http.bearer import Bearer
from controller.http.refusals import refusals
from controller.http.service import Service

DRAINING: dict[str, Any] = {"response_model": answers.Draining, "responses": refusals(401, 403, 404, 422, 503)}


def operation_routes(service: Service) -> APIRouter:
    """Routes that act on jobs and switches whoever they belong to."""
    router = APIRouter(prefix="/v1")

    def drained(switch: str, draining: bool, token: str | None) -> dict[str, Any]:
        service.require_operator(token)
        with service.changing() as jobs:
            before = jobs.drained
            jobs.drain(switch, draining)
            left = jobs.jobs_on(switch)
            if jobs.drained != before:
                text = f"{switch} takes no new jobs; on it: {len(left)}" if draining else f"{switch} takes jobs again"
                service.events.append("drain", text, switch=switch)
        return {"switch": switch, "draining": draining, "jobs": left}

    @router.delete("/jobs/{job}", response_model=answers.Ended, responses=refusals(401, 403, 404, 422, 503))
    def end(job: str, token: Bearer) -> Any:
        """End a job, whatever its ranks do; they go on over the hosts."""
        service.require_operator(token)
        with service.changing("it was ended by name") as jobs:
            jobs.end(job)
        return {"state": "ended"}

    @router.post("/switches/{switch}/drain", **DRAINING)
    def drain(switch: str, token: Bearer) -> Any:
        """Let a switch, and those below it, take no new jobs. Jobs on it go on; `jobs` is empty when the last has
        ended.
        """
        return drained(switch, True, token)

    @router.delete("/switches/{switch}/drain", **DRAINING)
    def undrain(switch: str, token: Bearer) -> Any:
        """Let a switch take jobs again."""
        return drained(switch, False, token)

    return router
