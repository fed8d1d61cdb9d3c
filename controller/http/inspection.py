"""What users read: the fabric's status, jobs and slots."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.http import answers
from controller.http.refusals import refusals
from controller.http.service import Service


def inspection_routes(service: Service) -> APIRouter:
    """Routes that change nothing."""
    router = APIRouter(prefix="/v1")

    @router.get("", response_model=answers.Identity)
    def controller() -> Any:
        """Identify this server as a controller, without asking its switches."""
        return {"netfold": "controller", "version": service.version}

    @router.get("/status", response_model=answers.Status)
    def status() -> Any:
        """Switches, their counters, and all jobs."""
        return service.status()

    @router.get("/jobs", response_model=answers.Jobs)
    def jobs() -> Any:
        """All jobs and their ranks, without asking the switches."""
        return {"jobs": service.describe_jobs()}

    @router.get("/jobs/{job}", response_model=answers.JobStatus, responses=refusals(404, 422))
    def job(job: str) -> Any:
        """A job and its ranks."""
        with service.lock:
            return service.describe(service.jobs.find(job))

    @router.get("/slots", response_model=answers.Slots)
    def slots() -> Any:
        """Which slots are taken, and by which jobs."""
        return service.describe_slots()

    return router
