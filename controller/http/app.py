"""The HTTP/JSON API of a service. OpenAPI pages are under /docs."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from controller.errors import ControllerError
from controller.http.inspection import inspection_routes
from controller.http.ranks import rank_routes
from controller.http.service import Service


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

    app.include_router(inspection_routes(service))
    app.include_router(rank_routes(service))
    return app
