"""How long a crowd delays others: `python -m tests.chaos.crowd --seconds 20`.

A rank sends heartbeats from a process of its own, and notes how long each answer takes: alone, then beside connections
that say nothing, beside large bodies, and beside a client that asks as fast as it can. The crowd is at 127.0.0.2, and
so another client than the rank.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.table import Table

from tests.conftest import Fabric, running_fabric

CROWD = "127.0.0.2"
BEAT_S = 0.02
PART = bytes(64 << 10)
WARM_UP_S = 2.0  # for the crowd to come, before the rank's answers count


def beats(address: str, path: str, token: str, seconds: float) -> list[float]:
    """How long each heartbeat's answer takes; on every second one a new connection is waited for, too."""
    took = []
    host, port = address.split(":")
    body, headers = (
        json.dumps({"position": 1}),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    kept = http.client.HTTPConnection(host, int(port), timeout=60)
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        for connection in (kept, http.client.HTTPConnection(host, int(port), timeout=60)):
            began = time.perf_counter()
            connection.request("POST", path, body, headers)
            reply = connection.getresponse()
            reply.read()
            took.append(time.perf_counter() - began)
            assert reply.status == 200, f"a heartbeat was answered {reply.status}"
            if connection is not kept:
                connection.close()
            time.sleep(BEAT_S)
    return took


async def idle(address: str, done: Counter[str]) -> None:
    """A connection that says nothing, until the controller ends it."""
    reader, writer = await _connect(address)
    try:
        await reader.read()
        done["connections ended"] += 1
    finally:
        writer.close()


async def large(address: str, done: Counter[str], mebibytes: int, head: str) -> None:
    """A request whose body is sent for as long as the controller takes it."""
    reader, writer = await _connect(address)
    chunked = "chunked" in head
    try:
        writer.write(head.encode())
        for _ in range(mebibytes * 16):
            writer.write(b"10000\r\n" + PART + b"\r\n" if chunked else PART)
            await writer.drain()
            done["MiB sent"] += 1 / 16  # type: ignore[assignment]
        await asyncio.wait_for(reader.read(), 30)
    finally:
        done["bodies"] += 1
        writer.close()


async def hasty(address: str, done: Counter[str]) -> None:
    """Requests without a pause on one connection."""
    reader, writer = await _connect(address)
    try:
        while True:
            writer.write(b"GET /v1 HTTP/1.1\r\nHost: here\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            done[f"answers {head.split()[1].decode()}"] += 1
    finally:
        writer.close()


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.split(":")
    return await asyncio.open_connection(host, int(port), local_addr=(CROWD, 0))


def _heads(mebibytes: int) -> list[str]:
    """Bodies whose length is said, bodies in chunks, and chunks where no body is looked for."""
    join = "POST /v1/jobs/other/ranks/0 HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    return [
        f"{join}Content-Length: {mebibytes << 20}\r\n\r\n",
        f"{join}Transfer-Encoding: chunked\r\n\r\n",
        "GET /v1 HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n",
    ]


async def _play(one: Callable[[int, Counter[str]], Awaitable[None]], count: int, seconds: float) -> Counter[str]:
    done: Counter[str] = Counter()

    async def again(number: int) -> None:
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                await one(number, done)
            await asyncio.sleep(0.01)

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*map(again, range(count))), seconds)
    return done


def crowd(kind: str, address: str, count: int, mebibytes: int, seconds: float) -> Counter[str]:
    """Play a crowd; what it got."""
    if kind == "idle":
        return asyncio.run(_play(lambda number, done: idle(address, done), count, seconds))
    if kind == "large":
        heads = _heads(mebibytes)
        return asyncio.run(
            _play(lambda number, done: large(address, done, mebibytes, heads[number % len(heads)]), count, seconds)
        )
    return asyncio.run(_play(lambda number, done: hasty(address, done), count, seconds))


def measure(fabric: Fabric, crowds: dict[str, tuple[str, int]], mebibytes: int, seconds: float) -> Table:
    """A line per crowd; the rank and the crowd are in processes of their own, and this one waits."""
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000]}
    code, joined = fabric.call("POST", "/v1/jobs/crowded/ranks/0", body)
    assert code == 200, joined
    address, path = urlsplit(fabric.http).netloc, "/v1/jobs/crowded/ranks/0/heartbeat"
    shown = Table("crowd", "heartbeats", "median", "99 %", "worst", "what the crowd got", "load")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, (kind, count) in {"none": ("", 0), **crowds}.items():
            playing = pool.submit(crowd, kind, address, count, mebibytes, seconds + 2 * WARM_UP_S) if count else None
            time.sleep(WARM_UP_S)
            took = pool.submit(beats, address, path, joined["token"], seconds).result()
            got = playing.result() if playing else Counter()
            shown.add_row(
                name,
                str(len(took)),
                f"{1e3 * statistics.median(took):.1f} ms",
                f"{1e3 * statistics.quantiles(took, n=100)[-1]:.1f} ms",
                f"{1e3 * max(took):.1f} ms",
                ", ".join(f"{value:.0f} {what}" for what, value in sorted(got.items())),
                f"{os.getloadavg()[0]:.1f}",
            )
    return shown


@click.command()
@click.option("--connections", type=click.IntRange(1), default=1500, show_default=True)
@click.option("--bodies", type=click.IntRange(1), default=6, show_default=True, help="Sent at once.")
@click.option("--mebibytes", type=click.IntRange(1), default=200, show_default=True, help="Of each body.")
@click.option("--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="For each crowd.")
def main(connections: int, bodies: int, mebibytes: int, seconds: float) -> None:
    """Measure how long heartbeats take beside a crowd."""
    crowds = {
        f"{connections} idle connections": ("idle", connections),
        f"{bodies} bodies of {mebibytes} MiB": ("large", bodies),
        "8 connections that never pause": ("hasty", 8),
    }
    with tempfile.TemporaryDirectory() as directory, running_fabric(Path(directory), "--ports", "2") as fabric:
        Console(width=150).print(measure(fabric, crowds, mebibytes, seconds))


if __name__ == "__main__":
    main()
