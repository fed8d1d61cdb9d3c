"""What a standby answers: that it is one, and who is the primary."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.errors import ControllerError, DeposedError, StateError
from controller.http.refusals import refusal
from hostlib.system.http_client import PRIMARY

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def standby_app(primary: Callable[[], str]) -> Starlette:
    """An application that refuses everything but `/health`.

    Args:
        primary: the primary's address; empty if there is none.
    """

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "standby", "primary": await run_in_threadpool(primary)})

    async def refused(request: Request) -> JSONResponse:
        return _refusal(DeposedError(await run_in_threadpool(primary)))

    async def unreadable(request: Request, error: Exception) -> JSONResponse:
        return _refusal(DeposedError(""), str(error))  # It is a standby all the same: another one may be asked.

    routes = [Route("/health", health), Route("/{path:path}", refused, methods=METHODS)]
    return Starlette(routes=routes, exception_handlers={ControllerError: unreadable})


class PrimaryOnly:
    """Middleware for a primary, which may have been stopped: what it remembers is not true any more when it is deposed."""

    def __init__(self, app: ASGIApp, require: Callable[[], None]) -> None:
        self._app, self._require = app, require

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            try:
                self._require()
            except DeposedError as error:
                app = _refusal(error)
            except StateError:
                pass  # Who is primary cannot be read now; nothing says that it is another one.
        await app(scope, receive, send)


def _refusal(error: DeposedError, detail: str = "") -> JSONResponse:
    return refusal(error, detail, **{PRIMARY: error.primary})
