"""Clients that send too many requests are refused."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.errors import RequestError
from controller.rates import Rates


class RateLimit:
    """Middleware that answers 429 to clients, which are hosts' addresses, that send too many requests."""

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self._app = app
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client"):
            try:
                self._rates.require(scope["client"][0])
            except RequestError as error:
                headers = {"Retry-After": str(error.retry_after_s)}
                await JSONResponse({"detail": str(error)}, error.status, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)
