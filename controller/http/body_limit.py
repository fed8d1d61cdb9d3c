"""Requests with large bodies are refused before they are read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 64 << 10  # a join with 32 UDP ports has less than 1 KiB
DETAIL = f"the body is too large: at most {MOST_BYTES >> 10} KiB"


class BodyLimit:
    """Middleware that answers 413; the connection is closed, so the rest need not be read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said[:20]) > MOST_BYTES:
            await _refuse(scope, receive, send)
            return
        came = 0

        async def counted() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > MOST_BYTES:
                raise HTTPException(413, DETAIL, {"Connection": "close"})
            return message

        await self._app(scope, counted, send)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse({"detail": DETAIL}, 413, {"Connection": "close"})(scope, receive, send)
