"""Refusals: their bodies, and how the API's description lists them."""

from __future__ import annotations

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from controller.errors import ControllerError
from controller.http.answers import Refusal

WHY = {
    404: "There is no such job, rank or epoch.",
    405: "The path has no such method.",
    409: "It contradicts what others of the job have said.",
    413: "The body is too large.",
    422: "The request is malformed or impossible; the detail says what is legal.",
    503: "The fabric is full, or a switch is down: try again later.",
}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for its description."""
    return {code: {"model": Refusal, "description": WHY[code]} for code in sorted(codes)}


def refuse_in_one_line(app: FastAPI) -> None:
    """Give every refusal of an application the body of Refusal."""

    def answer(code: int, detail: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"detail": detail}, code, headers)

    @app.exception_handler(ControllerError)
    def refused(request: Request, error: ControllerError) -> JSONResponse:
        return answer(error.status, str(error))

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(422, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    def unfit(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            # A body that is no text, or has a number of thousands of digits.
            return answer(422, "body: not valid JSON")
        if error.status_code == 404:
            return answer(404, f"there is nothing at {request.url.path}; /docs lists what there is")
        if error.status_code == 405:
            legal = ", ".join(sorted(_methods(app, request.url.path)))
            return answer(405, f"{request.method} is not possible there; legal: {legal}", {"Allow": legal})
        return answer(error.status_code, str(error.detail), error.headers)


def _methods(app: FastAPI, path: str) -> set[str]:
    """The methods of a path: routes share paths, and each knows its own method only."""
    paths = app.openapi()["paths"].items()
    found = (methods for known, methods in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path))
    return {method.upper() for methods in found for method in methods} or {"GET"}
