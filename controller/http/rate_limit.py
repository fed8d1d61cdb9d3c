"""Clients that send too many requests are refused."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.errors import RequestError
from controller.http.refusals import refusal
from controller.http.service import Service
from controller.jobs.job import member_name
from hostlib.protocol import constants

_MEMBER = re.compile(r"/v1/jobs/([^/]+)/(?:ranks/([0-9]{1,5})|server)(?:/heartbeat)?")


class RateLimit:
    """Middleware that answers 429 to clients that send too many requests.

    A client is a host's address. Ranks and the operator prove by their tokens who they are: they are clients of their
    own, so that nobody at the same address can keep their heartbeats and commands out.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("client"):
            try:
                self._service.rates.require(self._client(scope))
            except RequestError as error:
                await refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if token and scheme.lower() == "bearer":
            if self._service.is_operator(token):
                return "the operator"
            # Without the lock, which a slow disk may hold: what changes meanwhile is looked at again under it.
            named = _MEMBER.fullmatch(scope["path"])
            rank = int(named[2] or constants.RANK_ALL) if named else 0
            if named and self._service.jobs.owns(named[1], rank, token):
                return f"{member_name(rank)} of job {named[1]}"
        return str(scope["client"][0])
