"""Refusals: their bodies, and how the API's description lists them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from controller.errors import ControllerError
from controller.http.answers import Refusal
from controller.jobs.job import member_name
from hostlib.protocol import constants

JOINS = ("join", "join_server")  # routes of controller/http/ranks.py
WHY = {
    401: "It needs a token: the header Authorization: Bearer TOKEN.",
    403: "The token is another's.",
    404: "There is no such job, rank or epoch.",
    405: "The path has no such method.",
    409: "It contradicts what others of the job have said.",
    413: "The body is too large.",
    422: "The request is malformed or impossible; the detail says what is legal.",
    429: "The client, or its tenant, sends too many requests: try again later.",
    503: "The fabric is full, or a switch is down: try again later.",
}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for its description."""
    return {code: {"model": Refusal, "description": WHY[code]} for code in sorted(codes)}


def refusal(error: ControllerError, detail: str = "", **headers: str) -> JSONResponse:
    """The answer that says an error, as Refusal describes it.

    Args:
        detail: instead of the error's own words.
    """
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return JSONResponse({"detail": detail or str(error)}, error.status, headers)


def refuse_in_one_line(app: FastAPI, refused_join: Callable[[str, str | None, int | None], None]) -> None:
    """Give every refusal of an application the body of Refusal.

    Args:
        refused_join: called with what to record of each refused join: a sentence, the job, and the rank.
    """

    def record(request: Request, detail: str) -> None:
        if getattr(request.scope.get("route"), "name", "") in JOINS:
            job, rank = request.path_params.get("job"), str(request.path_params.get("rank", constants.RANK_ALL))
            number = int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 6 else None
            host = request.client.host if request.client else "a host"
            who = member_name(number) if number is not None else "a rank"
            refused_join(f"{who} of job {job} at {host} was refused: {detail}", job, number)

    def answer(request: Request, code: int, detail: str, headers: Any = None) -> JSONResponse:
        record(request, detail)
        return JSONResponse({"detail": detail}, code, headers)

    @app.exception_handler(ControllerError)
    def refused(request: Request, error: ControllerError) -> JSONResponse:
        record(request, str(error))
        return refusal(error)

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(request, 422, f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    def unfit(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            # A body that is no text, or has a number of thousands of digits.
            return answer(request, 422, "body: not valid JSON")
        if error.status_code == 404:
            return answer(request, 404, f"there is nothing at {request.url.path}; /docs lists what there is")
        if error.status_code == 405:
            legal = ", ".join(sorted(_methods(app, request.url.path)))
            return answer(request, 405, f"{request.method} is not possible there; legal: {legal}", {"Allow": legal})
        return answer(request, error.status_code, str(error.detail), error.headers)


def _methods(app: FastAPI, path: str) -> set[str]:
    """The methods of a path: routes share paths, and each knows its own method only."""
    paths = app.openapi()["paths"].items()
    found = (methods for known, methods in paths if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", known), path))
    return {method.upper() for methods in found for method in methods} or {"GET"}
