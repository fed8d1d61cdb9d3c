"""The HTTP API, asked by a client in this process, over a switch in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from controller.errors import SwitchError
from controller.http_api import Service, create_app
from controller.jobs.job import Job
from controller.jobs.job_table import LEASE_S, JobTable
from controller.topology import single
from hostlib.protocol import constants

PORTS = 4


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
        root = {"name": "root", "up": True, "events": {**events, "completed": 5}, "drops": {**drops, "stale": 1}}
        leaf = {"name": "leaf", "up": self.up, "events": {**events, "sent_up": 5}, "drops": {**drops, "stale": 2}}
        return [root, leaf if self.up else {**leaf, "events": {}, "drops": {}}]


@dataclass
class Api:
    """The application, and what lies behind it."""

    app: FastAPI
    switch: MemorySwitches
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
        body = {"world_size": world_size, "address": "127.0.0.1", "udp_ports": [5000 + rank], **changes}
        return self.call("POST", f"/jobs/{job}/ranks/{rank}", body)


@pytest.fixture
def api() -> Api:
    switch = MemorySwitches()
    ports = {port: f"127.0.0.1:{40000 + port}" for port in range(1, PORTS + 1)}
    topology = single("127.0.0.1:50051", 1, "10.255.255.254", ports)
    jobs = JobTable(switch, topology, lambda: here.seconds, lambda: 1_700_000_000.0)
    dumps: list[dict[str, Any]] = []
    endpoints = {("switch", port): address for port, address in ports.items()}
    service = Service(
        "1.2", "embedded", 64, constants.SLOTS, jobs, switch, endpoints, lambda: here.seconds, dumps.append
    )
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
        "switch": "switch",
        "switch_port": second["switch_port"],
        "job_id": second["job_id"],
        "epoch": 1_700_000_000,
        "rank": 1,
        "world_size": 2,
        "policy": "sum",
        "pools": [{"first_slot": 0, "slots": 128}],
        "elements": 64,
        "secret": second["secret"],
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
        (1, {"udp_ports": [0]}, 422, "body.udp_ports.0"),
        (1, {"udp_ports": [65536]}, 422, "body.udp_ports.0"),
        (1, {"udp_ports": []}, 422, "body.udp_ports"),
        (1, {"udp_ports": [1, 2]}, 409, "has 1 pools of slots; rank 1 came with 2 UDP ports"),
        (1, {"mac": "nonsense"}, 422, "body.mac"),
        (1, {"policy": "free"}, 422, "unknown policy free; legal are sum, server, shared, chunk"),
        (1, {"policy": "server"}, 409, "has policy sum; rank 1 came with server"),
        (constants.RANK_ALL, {}, 422, "a server joins at /jobs/NAME/server"),
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
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000], **changes}
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
    api.seconds = 4.0
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
        "switch": "switch",
        "switch_port": job["ranks"][1]["switch_port"],
        "last_heartbeat_s": 1.0,
        "last_progress_s": 2.0,
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


def test_a_jobs_secret_is_told_to_its_ranks_alone_and_is_new_in_its_next_life(api: Api) -> None:
    assert "secret" not in api.join(0)[1]
    secret = api.join(1)[1]["secret"]
    assert len(bytes.fromhex(secret)) == 16
    assert api.call("GET", "/jobs/demo/ranks/0")[1]["secret"] == secret
    assert api.dumps[-1]["jobs"][0]["secret"] == secret
    for path in ("/status", "/jobs/demo"):
        assert secret not in str(api.call("GET", path))
    for rank in (0, 1):
        api.call("DELETE", f"/jobs/demo/ranks/{rank}")
    for rank in (0, 1):
        answer = api.join(rank)[1]
    assert answer["secret"] != secret


def test_what_changed_is_kept_for_a_restart(api: Api) -> None:
    api.join(0)
    api.join(1)
    assert [job["name"] for job in api.dumps[-1]["jobs"]] == ["demo"]
    assert api.dumps[-1]["last_epoch"] == 1_700_000_000
    api.call("DELETE", "/jobs/demo/ranks/0")
    api.call("DELETE", "/jobs/demo/ranks/1")
    assert api.dumps[-1] == {"last_epoch": 1_700_000_000, "jobs": []}


def test_who_is_there_is_told_without_asking_the_switches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemorySwitches, "describe", lambda self: pytest.fail("the switches were asked"))
    code, answer = api.call("GET", "/")
    assert code == 200 and answer["netfold"] == "controller" and answer["version"]


def test_status_says_what_is_going_on(api: Api) -> None:
    api.join(0)
    code, status = api.call("GET", "/status")
    assert code == 200
    assert status["version"] == "1.2"
    assert status.items() >= {"kind": "embedded", "elements": 64, "slots": constants.SLOTS, "up": True}.items()
    assert [switch["name"] for switch in status["switches"]] == ["root", "leaf"]
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    assert (status["events"]["completed"], status["events"]["sent_up"], status["drops"]["stale"]) == (5, 5, 3)
    assert set(status["events"]) == set(constants.EVENTS) and set(status["drops"]) == set(constants.DROPS)


def test_a_dead_switch_is_down_and_takes_nobody(api: Api) -> None:
    api.join(0)
    api.switch.up = False
    code, status = api.call("GET", "/status")
    assert (code, status["up"], status["events"]["completed"]) == (200, False, 5)
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    code, answer = api.join(1)
    assert (code, answer["detail"]) == (503, "the switch at 127.0.0.1:50051 is gone")


def test_a_server_joins_like_a_rank(api: Api) -> None:
    api.join(0, world_size=1, policy="server")
    assert api.call("GET", "/jobs/demo/server")[0] == 404
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [7000], "policy": "server"}
    code, place = api.call("POST", "/jobs/demo/server", body)
    assert (code, place["state"], place["rank"], place["policy"]) == (200, "ready", constants.RANK_ALL, "server")
    assert api.call("GET", "/jobs/demo/server")[1] == place
    worker, server = ({"address": "127.0.0.1", "udp_ports": [port]} for port in (5000, 7000))
    assert (place["server"], place["workers"]) == (server, [worker])
    answer = api.call("GET", "/jobs/demo/ranks/0")[1]
    assert answer["server"] == server and "workers" not in answer
    assert api.call("POST", "/jobs/demo/server/heartbeat", {"position": 3}) == (200, {"state": "ready"})
    assert [rank["position"] for rank in api.call("GET", "/jobs/demo")[1]["ranks"]] == [0, 3]
    assert api.call("DELETE", "/jobs/demo/server") == (200, {"state": "left"})
    assert api.call("DELETE", "/jobs/demo/ranks/0") == (200, {"state": "left"})
    assert api.switch.installed == []


def test_a_job_of_the_sum_policy_has_no_server(api: Api) -> None:
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [7000]}
    code, answer = api.call("POST", "/jobs/demo/server", body)
    assert (code, answer["detail"]) == (422, "policy sum has no server; server, shared and chunk do")
