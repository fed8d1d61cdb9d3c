"""The HTTP API, asked by a client in this process, over a switch in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI

from controller.errors import SwitchError
from controller.events.event_log import EventLog
from controller.http.app import create_app
from controller.http.service import Service
from controller.jobs.job import Job
from controller.jobs.job_table import JobTable
from controller.topology import single
from hostlib.protocol import constants

PORTS = 4
TRAFFIC = {"packets_in": 6, "bytes_in": 600, "packets_out": 5, "bytes_out": 500}


@dataclass
class MemorySwitches:
    """Both of what jobs and what the API need of the switches."""

    up: bool = True
    installed: list[str] = field(default_factory=list)

    def require_up(self) -> None:
        if not self.up:
            raise SwitchError("the switch at 127.0.0.1:50051 is gone")

    def install(self, job: Job) -> None:
        self.require_up()
        self.installed.append(job.name)

    def remove(self, job: Job) -> None:
        self.require_up()
        self.installed.remove(job.name)

    def describe(self) -> list[dict[str, Any]]:
        events, drops = dict.fromkeys(constants.EVENTS, 0), dict.fromkeys(constants.DROPS, 0)
        same = {"p4rt": "127.0.0.1:50051", "program": "netfold-v1model-64", "restarts": 0}
        root = {**same, "name": "root", "parent": None, "up": True, "events": {**events, "completed": 5}}
        root |= {"drops": {**drops, "stale": 1}, "ports": {"1": TRAFFIC}}
        leaf = {**same, "name": "leaf", "parent": "root", "up": self.up, "events": {**events, "sent_up": 5}}
        leaf |= {"drops": {**drops, "stale": 2}, "ports": {}}
        return [root, leaf if self.up else {**leaf, "events": {}, "drops": {}}]

    def answers(self, switch: str) -> bool:
        return self.up

    def describe_cables(self) -> list[dict[str, Any]]:
        here, there = {"switch": "leaf", "port": 100}, {"switch": "root", "port": 101}
        return [{"sender": here, "receiver": there, "state": "silent", "found": None, "text": "nothing comes in"}]


@dataclass
class Clock:
    """Monotonic seconds, set by hand."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Api:
    """The application, and what lies behind it."""

    app: FastAPI
    service: Service
    switch: MemorySwitches
    dumps: list[dict[str, Any]]
    clock: Clock
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.clock.seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self.clock.seconds = seconds

    def expire(self) -> None:
        """As the controller does again and again."""
        with self.service.changing() as jobs:
            jobs.expire()

    def answer(self, method: str, path: str, body: Any = None, token: str | None = None) -> httpx.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(ask())

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """A call with the token of the rank that it is about, if it has joined; else the operator's."""
        member = path.partition("?")[0].removesuffix("/heartbeat")
        reply = self.answer(method, path, body, self.tokens.get(member, self.service.operator))
        answer = reply.json()
        if method == "POST" and reply.status_code == 200 and "token" in answer:
            self.tokens[member] = answer["token"]
        return reply.status_code, answer

    def read(self, path: str) -> str:
        """A page or file."""
        reply = self.answer("GET", path)
        assert reply.status_code == 200, path
        return reply.text

    def join(self, rank: int, world_size: int = 2, job: str = "demo", **changes: Any) -> tuple[int, Any]:
        body = {"world_size": world_size, "address": "127.0.0.1", "udp_ports": [5000 + rank], **changes}
        return self.call("POST", f"/v1/jobs/{job}/ranks/{rank}", body)


def memory_api(events: EventLog | None = None, dumped: dict[str, Any] | None = None) -> Api:
    """An API with a clock that is set by hand.

    Args:
        dumped: the jobs of an earlier controller.
    """
    switch = MemorySwitches()
    ports = {port: f"127.0.0.1:{40000 + port}" for port in range(1, PORTS + 1)}
    topology = single("127.0.0.1:50051", 1, "10.255.255.254", ports)
    clock = Clock()
    dumps: list[dict[str, Any]] = []
    jobs = JobTable(switch, topology, clock, lambda: 1_700_000_000.0, dumps.append)
    if dumped is not None:
        jobs.restore(dumped)
        switch.installed += jobs.jobs
    endpoints = {("switch", port): address for port, address in ports.items()}
    events = events or EventLog(None, lambda: 1_700_000_000.0 + clock.seconds, clock=clock)
    service = Service("1.2", "embedded", 64, constants.SLOTS, jobs, switch, endpoints, clock, events=events)
    return Api(create_app(service), service, switch, dumps, clock)
