"""What a standby answers, and a primary that another one has deposed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from controller.errors import DeposedError, StateError
from controller.http.standby_app import standby_app
from hostlib.system.http_client import is_standby
from tests.unit.controller.memory_api import memory_api

SAYS = "this controller is a standby: the primary is http://192.0.2.1:9339"


def ask(method: str, path: str, primary: str | Callable[[], str]) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(standby_app(primary if callable(primary) else lambda: primary))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path)

    return asyncio.run(asked())


def test_a_standby_is_healthy_and_knows_the_primary() -> None:
    answer = ask("GET", "/health", "http://192.0.2.1:9339")
    assert (answer.status_code, answer.json()) == (200, {"status": "standby", "primary": "http://192.0.2.1:9339"})


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/v1/status"), ("POST", "/v1/jobs/a/ranks/0"), ("DELETE", "/v1/jobs/a")]
)
def test_a_standby_refuses_the_rest_and_names_the_primary(method: str, path: str) -> None:
    answer = ask(method, path, "http://192.0.2.1:9339")
    assert (answer.status_code, answer.json()) == (503, {"detail": SAYS})
    assert is_standby(answer) and answer.headers["Retry-After"] == "1"
    nobody = ask(method, path, "")
    assert nobody.json() == {"detail": "this controller is a standby: there is no primary at the moment, try again"}
    assert is_standby(nobody)


def test_a_standby_that_cannot_read_who_is_primary_is_a_standby_all_the_same() -> None:
    def unreadable() -> str:
        raise StateError("state.db cannot be read: disk I/O error")

    answer = ask("GET", "/v1/jobs", unreadable)
    assert (answer.status_code, answer.json()) == (503, {"detail": "state.db cannot be read: disk I/O error"})
    assert is_standby(answer), "ranks ask another one"


def test_a_deposed_primary_answers_as_a_standby_does() -> None:
    api = memory_api()
    api.join(0, world_size=1)

    def deposed() -> None:
        raise DeposedError("http://192.0.2.1:9339")

    api.service.require_primary = deposed
    for method, path in (("GET", "/v1/jobs"), ("DELETE", "/v1/jobs/demo/ranks/0"), ("GET", "/health")):
        answer = api.answer(method, path)
        assert (answer.status_code, answer.json(), is_standby(answer)) == (503, {"detail": SAYS}, True)
    assert list(api.service.jobs.jobs) == ["demo"]

    def unreadable() -> None:
        raise StateError("the state cannot be read")

    api.service.require_primary = unreadable
    assert api.call("GET", "/v1/jobs")[0] == 200
