"""The HTTP API, asked by a client in this process, over a switch in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from controller.api import Service, create_app
from controller.errors import SwitchError
from controller.job import LEASE_S, Job, JobTable
from hostlib import layout

PORTS = 4


@dataclass
class MemorySwitch:
    """Both of what jobs and what the API need of a switch."""

    program: str = "netfold-v1model-64"
    p4rt: str = "127.0.0.1:50051"
    up: bool = True
    breaks: bool = False
    installed: list[str] = field(default_factory=list)

    def _use(self) -> None:
        if self.breaks:
            raise SwitchError(f"the switch at {self.p4rt} is gone")

    def install(self, job: Job) -> None:
        self._use()
        self.installed.append(job.name)

    def remove(self, job: Job) -> None:
        self._use()
        self.installed.remove(job.name)

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        self._use()
        events, drops = dict.fromkeys(layout.EVENTS, 0), dict.fromkeys(layout.DROPS, 0)
        return {**events, "completed": 5}, {**drops, "stale": 1}

    def ports(self) -> dict[int, dict[str, int]]:
        self._use()
        return {1: {"packets_in": 5, "bytes_in": 500, "packets_out": 4, "bytes_out": 400}}


@dataclass
class Api:
    """The application, and what lies behind it."""

    app: FastAPI
    switch: MemorySwitch
    dumps: list[dict[str, Any]]
    seconds: float = 0.0

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return await client.request(method, path, json=body)

        reply = asyncio.run(ask())
        return reply.status_code, reply.json()

    def join(self, rank: int, world_size: int = 2, job: str = "demo", **changes: Any) -> tuple[int, Any]:
        body = {"world_size": world_size, "address": "127.0.0.1", "udp_port": 5000 + rank, **changes}
        return self.call("POST", f"/jobs/{job}/ranks/{rank}", body)


@pytest.fixture
def api() -> Api:
    switch = MemorySwitch()
    jobs = JobTable(switch, list(range(1, PORTS + 1)), lambda: here.seconds, lambda: 1_700_000_000.0)
    dumps: list[dict[str, Any]] = []
    endpoints = {port: f"127.0.0.1:{40000 + port}" for port in range(1, PORTS + 1)}
    service = Service("1.2", "embedded", 64, layout.SLOTS, jobs, switch, endpoints, lambda: here.seconds, dumps.append)
    here = Api(create_app(service), switch, dumps)
    return here


def test_ranks_join_and_learn_their_place(api: Api) -> None:
    code, first = api.join(0)
    assert (code, first["state"]) == (200, "waiting")
    assert first["fabric"] == {"address": "127.0.0.1", "port": 40000 + first["switch_port"]}
    assert "epoch" not in first
    code, second = api.join(1)
    assert code == 200
    assert second == {
        "state": "ready",
        "fabric": {"address": "127.0.0.1", "port": 40000 + second["switch_port"]},
        "switch_port": second["switch_port"],
        "job_id": second["job_id"],
        "epoch": 1_700_000_000,
        "rank": 1,
        "world_size": 2,
        "first_slot": 0,
        "slots": 128,
        "elements": 64,
    }
    code, polled = api.call("GET", "/jobs/demo/ranks/0")
    own = {"rank": 0, "switch_port": first["switch_port"], "fabric": first["fabric"]}
    assert (code, polled) == (200, {**second, **own})
    assert api.switch.installed == ["demo"]


@pytest.mark.parametrize(
    ("rank", "changes", "code", "says"),
    [
        (1, {"world_size": 3}, 409, "world size 2"),
        (2, {}, 422, "rank 2 is not in 0..1"),
        (-1, {}, 422, "rank -1"),
        (1, {"world_size": 33}, 422, "world size 33"),
        (1, {"udp_port": 0}, 422, "body.udp_port"),
        (1, {"udp_port": 65536}, 422, "body.udp_port"),
        (1, {"address": "nonsense"}, 422, "body.address"),
        (1, {"wordl_size": 2}, 422, "body.wordl_size"),
        (1, {"world_size": None}, 422, "body.world_size"),
        ("x", {}, 422, "path.rank"),
    ],
)
def test_a_wrong_join_is_refused_in_one_line(
    api: Api, rank: Any, changes: dict[str, Any], code: int, says: str
) -> None:
    api.join(0)
    body = {"world_size": 2, "address": "127.0.0.1", "udp_port": 5000, **changes}
    got, answer = api.call("POST", f"/jobs/demo/ranks/{rank}", body)
    assert got == code
    assert list(answer) == ["detail"]
    assert says in answer["detail"]
    assert len(answer["detail"].splitlines()) == 1
    assert [r["rank"] for r in api.call("GET", "/jobs/demo")[1]["ranks"]] == [0]


def test_a_full_switch_says_so(api: Api) -> None:
    for rank in range(PORTS):
        assert api.join(rank, world_size=PORTS + 1)[0] == 200
    code, answer = api.join(PORTS, world_size=PORTS + 1)
    assert (code, answer["detail"]) == (503, "no switch port is free on this switch: wait for a job to end")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/jobs/other"),
        ("GET", "/jobs/demo/ranks/1"),
        ("DELETE", "/jobs/demo/ranks/1"),
        ("DELETE", "/jobs/other/ranks/0"),
        ("GET", "/jobs/other/ranks/0"),
    ],
)
def test_what_is_not_there_is_404(api: Api, method: str, path: str) -> None:
    api.join(0)
    code, answer = api.call(method, path)
    assert code == 404
    assert list(answer) == ["detail"]


def test_heartbeats_carry_the_position(api: Api) -> None:
    api.join(0)
    api.join(1)
    api.seconds = 3.0
    assert api.call("POST", "/jobs/demo/ranks/1/heartbeat", {"position": 77}) == (200, {"state": "ready"})
    api.seconds = 5.0
    assert api.call("POST", "/jobs/demo/ranks/1/heartbeat", {"position": -1})[0] == 422
    code, job = api.call("GET", "/jobs/demo")
    assert code == 200
    assert {key: job[key] for key in ("name", "world_size", "state")} == {
        "name": "demo",
        "world_size": 2,
        "state": "ready",
    }
    assert job["ranks"][1] == {
        "rank": 1,
        "address": "127.0.0.1:5001",
        "switch_port": job["ranks"][1]["switch_port"],
        "last_heartbeat_s": 2.0,
        "position": 77,
        "state": "joined",
    }
    assert job["ranks"][0]["last_heartbeat_s"] == 5.0


def test_polling_counts_as_a_sign_of_life(api: Api) -> None:
    api.join(0)
    api.seconds = LEASE_S - 1
    assert api.call("GET", "/jobs/demo/ranks/0")[0] == 200
    api.seconds = 2 * LEASE_S - 2
    api.join(0, job="other")  # joining is when leases are looked at
    assert api.call("GET", "/jobs/demo")[1]["ranks"][0]["state"] == "joined"


def test_the_last_to_leave_ends_the_job(api: Api) -> None:
    api.join(0)
    api.join(1)
    assert api.call("DELETE", "/jobs/demo/ranks/0") == (200, {"state": "left"})
    assert api.switch.installed == ["demo"]
    assert api.call("DELETE", "/jobs/demo/ranks/1") == (200, {"state": "left"})
    assert api.switch.installed == []
    assert api.call("GET", "/jobs/demo")[0] == 404


def test_what_changed_is_kept_for_a_restart(api: Api) -> None:
    api.join(0)
    api.join(1)
    assert [job["name"] for job in api.dumps[-1]["jobs"]] == ["demo"]
    assert api.dumps[-1]["last_epoch"] == 1_700_000_000
    api.call("DELETE", "/jobs/demo/ranks/0")
    api.call("DELETE", "/jobs/demo/ranks/1")
    assert api.dumps[-1] == {"last_epoch": 1_700_000_000, "jobs": []}


def test_status_says_what_is_going_on(api: Api) -> None:
    api.join(0)
    code, status = api.call("GET", "/status")
    assert code == 200
    assert status["version"] == "1.2"
    assert (
        status["switch"].items()
        >= {
            "kind": "embedded",
            "p4rt": "127.0.0.1:50051",
            "program": "netfold-v1model-64",
            "elements": 64,
            "slots": layout.SLOTS,
            "up": True,
        }.items()
    )
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    assert (status["events"]["completed"], status["drops"]["stale"]) == (5, 1)
    assert set(status["events"]) == set(layout.EVENTS) and set(status["drops"]) == set(layout.DROPS)
    assert status["ports"]["1"]["bytes_in"] == 500


@pytest.mark.parametrize("how", ["the stream ended", "a read failed"])
def test_a_dead_switch_is_down_and_takes_nobody(api: Api, how: str) -> None:
    api.join(0)
    api.switch.breaks, api.switch.up = True, how == "a read failed"
    code, status = api.call("GET", "/status")
    assert (code, status["switch"]["up"]) == (200, False)
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    code, answer = api.join(1)
    assert (code, answer["detail"]) == (503, "the switch at 127.0.0.1:50051 is gone")
