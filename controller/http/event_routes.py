"""What happened, and what happens: events, history, and streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from controller.errors import RequestError
from controller.http import answers
from controller.http.refusals import refusals
from controller.http.service import Service

MOST_STREAMS = 64
LOOK_EVERY_S = 0.2
STATUS_EVERY_S = 1.0
LARGEST_ID = 2**53 - 1  # as far as browsers count
REFUSED = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
Most = Annotated[int, Query(ge=1, le=1000)]
EventId = Annotated[int | None, Query(ge=0, le=LARGEST_ID)]


def event_routes(service: Service) -> APIRouter:
    """Routes of the event log."""
    router = APIRouter(prefix="/v1")
    events = service.events
    streams: set[object] = set()

    def counted() -> Iterator[None]:
        """One more stream.

        Raises:
            RequestError: 503, there are as many as there may be.
        """
        if len(streams) >= MOST_STREAMS:
            raise RequestError(503, f"{MOST_STREAMS} streams of events are open already: close one, or poll")
        this = object()
        streams.add(this)
        try:
            yield
        finally:
            streams.discard(this)

    streaming: dict[str, Any] = {
        "response_class": EventSourceResponse,
        "dependencies": [Depends(counted)],
        # A refusal is no stream, but of the route's type if FastAPI describes it.
        "responses": {
            code: {**refusal, "model": None, "content": REFUSED} for code, refusal in refusals(422, 429, 503).items()
        },
    }

    @router.get("/events", response_model=answers.Events, responses=refusals(422))
    def list_events(after: EventId = None, most: Most = 100) -> Any:
        """The first events after the one with this id; without `after`, the last ones. Oldest first."""
        found = events.last(most) if after is None else events.after(after, most)
        return {"events": [asdict(event) for event in found], "last_id": events.last_id}

    @router.get("/events/stream", **streaming)
    async def stream_events(
        after: EventId = None, last_event_id: Annotated[str | None, Header()] = None
    ) -> AsyncIterator[ServerSentEvent]:
        """Events as they happen, as server-sent events with their ids; `after`, or the header Last-Event-ID, says from
        where on. Without either, from now on.
        """
        seen = events.last_id if after is None else after
        if last_event_id is not None and last_event_id.isascii() and last_event_id.isdecimal():
            seen = int(last_event_id[:16])
        while not events.closed.is_set():
            for event in events.after(seen, 100):
                seen = event.id
                yield ServerSentEvent(data=asdict(event), id=str(event.id))
            await asyncio.sleep(LOOK_EVERY_S)

    @router.get("/status/stream", **streaming)
    async def stream_status() -> AsyncIterator[ServerSentEvent]:
        """The answer of /v1/status once a second, as server-sent events. All streams share one look at the switches."""
        while not events.closed.is_set():
            status = await run_in_threadpool(service.recent_status, STATUS_EVERY_S / 2)
            yield ServerSentEvent(data=status)
            await asyncio.sleep(STATUS_EVERY_S)

    @router.get("/history", response_model=answers.History, responses=refusals(422))
    def history(most: Most = 100) -> Any:
        """Jobs that have ended, the last one first."""
        return {"jobs": [asdict(job) for job in events.history(most)]}

    return router
