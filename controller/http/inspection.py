"""What users read: the fabric's status, and jobs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from controller.http.service import Service


def inspection_routes(service: Service) -> APIRouter:
    """Routes that change nothing."""
    router = APIRouter()

    @router.get("/")
    def controller() -> dict[str, str]:
        """Identify this server as a controller, without asking its switches."""
        return {"netfold": "controller", "version": service.version}

    @router.get("/status")
    def status() -> dict[str, Any]:
        """Switches, their counters, and all jobs."""
        return service.status()

    @router.get("/jobs/{job}")
    def job(job: str) -> dict[str, Any]:
        """A job and its ranks."""
        with service.lock:
            return service.describe(service.jobs.find(job))

    return router
