"""The HTTP/JSON API of a service: /v1. Its description is at /v1/openapi.json, for people at /docs."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from prometheus_client import CollectorRegistry

from controller.http.body_limit import BodyLimit
from controller.http.event_routes import event_routes
from controller.http.inspection import inspection_routes
from controller.http.metrics import FabricCollector, RequestMetrics
from controller.http.monitoring import monitoring_routes
from controller.http.operation import operation_routes
from controller.http.pages import page_routes
from controller.http.ranks import rank_routes
from controller.http.rate_limit import RateLimit
from controller.http.refusals import refusals, refuse_in_one_line
from controller.http.service import Service
from controller.http.standby_app import PrimaryOnly

DESCRIPTION = """
Ranks join a job, send heartbeats and leave; users see what the controller does.

Every refusal is a JSON object with a `detail`: one line that says what is wrong and what is legal.
"""


def create_app(service: Service) -> FastAPI:
    """Create the API for a service."""
    app: FastAPI = FastAPIOffline(
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        title="netfold controller",
        version=service.version,
        description=DESCRIPTION,
        responses=refusals(429),
    )
    refuse_in_one_line(app, service.events.refused)
    registry = CollectorRegistry()
    registry.register(FabricCollector(service))
    app.add_middleware(BodyLimit)
    app.add_middleware(RateLimit, service=service)
    app.add_middleware(RequestMetrics, registry=registry)
    app.add_middleware(PrimaryOnly, require=lambda: service.require_primary())
    app.include_router(page_routes(service))
    app.include_router(monitoring_routes(service, registry), tags=["monitoring"])
    app.include_router(inspection_routes(service), tags=["inspection"])
    app.include_router(event_routes(service), tags=["events"])
    app.include_router(rank_routes(service), tags=["ranks"])
    app.include_router(operation_routes(service), tags=["operation"])
    return app
