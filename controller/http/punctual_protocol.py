"""Connections whose requests must come in time.

uvicorn ends a connection that is idle after an answer, but waits for ever for a first request, or for the rest of one;
and asyncio waits a minute for a TLS handshake. And when a server ends, uvicorn drops whoever has just connected: a
client of a primary that becomes a standby would have no answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # from the connection, or a request's first byte, to its last byte
LAST_REQUEST_S = 0.5  # from the end of the server to the last byte of a connection's first request


class PunctualLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers give a TLS handshake as long as a request. uvicorn has no option for that."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = REQUEST_S
        return await super().create_server(*args, **options)


class PunctualProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, with a limit to how long a request may take to arrive."""

    _late: asyncio.TimerHandle | None = None
    _ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._ending and self.cycle is not None:
            self.cycle.keep_alive = False
        self._look()

    def shutdown(self) -> None:
        """End with the answer to the request that is here, or to the first one, which is on its way."""
        if self.cycle is not None or self.transport.is_closing():
            super().shutdown()
            return
        self._ending = True
        self._forget()
        self._late = self.loop.call_later(LAST_REQUEST_S, self._give_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is None:  # The next request has begun, with bytes that came before the answer.
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Let the time run while a request, or the rest of one, is to come."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._give_up)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        self.transport.close()
