"""The page for browsers, at /, and the dashboard for Grafana."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse

from controller.http.service import Service

PAGE = Path(__file__).with_name("page.html")
DASHBOARD = Path(__file__).with_name("grafana_dashboard.json")
EVENTS = 30
AGE_S = 0.5
# Nothing from elsewhere, and no script but the page's own.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


def page_routes(service: Service) -> APIRouter:
    """The page, with what it shows first; then it follows the streams of status and events."""
    router = APIRouter()
    text = PAGE.read_text(encoding="utf-8")

    @router.get("/", include_in_schema=False, response_class=HTMLResponse)
    def page() -> HTMLResponse:
        events = [asdict(event) for event in service.events.last(EVENTS)]
        last_id = events[-1]["id"] if events else 0
        first = {"status": service.recent_status(AGE_S), "events": events, "last_id": last_id}
        # Names come from strangers: they must not end the script.
        return HTMLResponse(text.replace("{{first}}", json.dumps(first).replace("<", "\\u003c")), headers=HEADERS)

    @router.get("/grafana.json", include_in_schema=False)
    def dashboard() -> FileResponse:
        return FileResponse(DASHBOARD, media_type="application/json")

    return router
