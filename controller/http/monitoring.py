"""For monitoring systems: metrics, and whether all is well."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from controller.errors import StateError, SwitchError
from controller.http import answers
from controller.http.refusals import refusals
from controller.http.service import Service

TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


def monitoring_routes(service: Service, registry: CollectorRegistry) -> APIRouter:
    """Routes that monitoring systems expect at the top."""
    router = APIRouter()

    @router.get("/health", response_model=answers.Health, responses=refusals(503))
    def health() -> Any:
        """Whether the controller and all its switches are at work, as far as is known without asking them now."""
        service.switches.require_up()
        if service.disk_full():
            raise StateError("the disk with the controller's state is full: make room")
        if service.jobs.unsaved:
            raise StateError("the controller cannot write its state; it goes on trying")
        if service.events.failed is not None:
            raise SwitchError(f"the controller cannot write its files: {service.events.failed}")
        return {"status": "ok"}

    @router.get("/metrics", response_class=PlainTextResponse, responses=TEXT)
    def metrics() -> Any:
        """Metrics in Prometheus' text format."""
        return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
