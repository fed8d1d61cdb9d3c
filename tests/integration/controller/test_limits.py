"""Who sends too much, or nothing at all, does not keep others out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from controller.http import punctual_protocol
from controller.http.punctual_protocol import PunctualProtocol
from hostlib.fabric.job_client import join
from hostlib.system.http_client import bearer
from hostlib.system.interfaces import unused_udp_ports
from tests.conftest import Fabric

SOON_S = 0.5
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer once the body has come, and a while after."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(2 * SOON_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def connected(
    keep_alive_s: int,
) -> AsyncIterator[tuple[uvicorn.Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server that waits so long for another request after an answer, and a client's connection to it."""
    config = uvicorn.Config(
        echo, port=0, http=PunctualProtocol, lifespan="off", log_level="error", timeout_keep_alive=keep_alive_s
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    try:
        yield server, reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def answers(*parts: bytes) -> bytes:
    """All that a server says to a client that sends this, with pauses, until it ends the connection."""
    said = b""
    async with connected(keep_alive_s=1) as (_, reader, writer):
        with contextlib.suppress(ConnectionError):  # A byte may meet a connection that has just been closed.
            for part in parts:
                if not reader.at_eof():
                    writer.write(part)
                    await asyncio.sleep(SOON_S / 4)
            said = await asyncio.wait_for(reader.read(), 20)
    return said


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((), id="nothing"),
        pytest.param((WHOLE[:10],), id="half a request"),
        pytest.param(tuple(bytes([each]) for each in WHOLE[:-1]), id="byte by byte"),
        pytest.param((WHOLE[:-2] + b"Content-Length: 9\r\n\r\n", b"half"), id="half a body"),
    ],
)
def test_a_request_that_does_not_come_in_time_ends_its_connection(
    parts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punctual_protocol, "REQUEST_S", SOON_S)
    assert asyncio.run(answers(*parts)) == b""


async def answer_of_an_ending_server(*parts: bytes) -> bytes:
    """All that a server says to a client that had connected before it was told to end, and sends this afterwards."""
    # Only its end closes the connection: another request would be waited for much longer than this.
    async with connected(keep_alive_s=600) as (server, reader, writer):
        while not server.server_state.connections:
            await asyncio.sleep(0.01)
        server.should_exit = True
        while server.servers[0].is_serving():
            await asyncio.sleep(0.01)
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(reader.read(), 20)


@pytest.mark.parametrize(
    "parts", [pytest.param((WHOLE,), id="whole"), pytest.param((WHOLE[:9], WHOLE[9:]), id="in two")]
)
def test_who_has_just_connected_is_answered_by_a_server_that_ends(parts: tuple[bytes, ...]) -> None:
    said = asyncio.run(answer_of_an_ending_server(*parts))
    assert said.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("parts", [pytest.param((), id="nothing"), pytest.param((WHOLE[:9],), id="half a request")])
def test_a_server_that_ends_does_not_wait_for_who_says_nothing(parts: tuple[bytes, ...]) -> None:
    assert asyncio.run(answer_of_an_ending_server(*parts)) == b""


def test_half_a_request_behind_a_whole_one_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has come before the answer to the first one, so nothing comes that could start the time."""
    monkeypatch.setattr(punctual_protocol, "REQUEST_S", SOON_S)
    half = WHOLE[:-2] + b"Content-Length: 9\r\n\r\nhalf"
    said = asyncio.run(answers(WHOLE + half))
    assert said.count(b"HTTP/1.1 200 OK") == 1


def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punctual_protocol, "REQUEST_S", SOON_S)
    assert asyncio.run(answers(WHOLE)).startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_asks_too_often_is_told_to_wait(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--ports", "1", "--rate", "10")
    detail = "127.0.0.1 sends more than 10 requests a second: try again in 1 s"
    with httpx.Client(base_url=fabric.http, headers={"X-Forwarded-For": "192.0.2.1"}, timeout=15) as client:
        reply, _ = _flooded(client)
        assert (reply.status_code, reply.json()) == (429, {"detail": detail})
        time.sleep(float(reply.headers["Retry-After"]))
        assert client.get("/v1").status_code == 200


def test_a_flood_from_a_ranks_own_host_does_not_end_its_job(start_fabric: Callable[..., Fabric]) -> None:
    """Everybody on loopback is one client; who has a rank's token is another one."""
    fabric = start_fabric("--ports", "1", "--rate", "10")
    session = join(fabric.http, "demo", 0, 1, "127.0.0.1", unused_udp_ports("127.0.0.1", 1), 30, lambda: 7)
    beat = f"/v1/jobs/demo/ranks/{session.place.rank}/heartbeat"
    with httpx.Client(base_url=fabric.http, timeout=15) as stranger:

        def beats(token: str) -> int:
            return stranger.post(beat, json={"position": 7}, headers=bearer(token)).status_code

        for _ in range(3):
            assert _while_flooded(stranger, session.alive) is True
            assert _while_flooded(stranger, lambda: beats(session.token)) == 200
            assert _while_flooded(stranger, lambda: beats("0" * 64)) == 429
        _flooded(stranger)
        session.leave()
        time.sleep(1.1)
        assert stranger.get("/v1/jobs").json()["jobs"] == []


def _while_flooded(client: httpx.Client, ask: Callable[[], int]) -> int:
    """What is answered in a second in which the client has been refused; a busy machine needs more than one try."""
    give_up = time.monotonic() + 60
    while True:
        _, second = _flooded(client)
        answer = ask()
        if int(time.monotonic()) == second:
            return answer
        assert time.monotonic() < give_up


def _flooded(client: httpx.Client) -> tuple[httpx.Response, int]:
    """The first refusal, and its second by the clock that this machine's processes share."""
    give_up = time.monotonic() + 30
    time.sleep(1 - time.monotonic() % 1)
    while True:
        second = int(time.monotonic())
        if (reply := client.get("/v1")).status_code != 200:
            return reply, second
        assert time.monotonic() < give_up
