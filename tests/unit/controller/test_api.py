"""The HTTP API, asked by a client in this process, over a switch in memory."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controller.errors import StateError
from controller.jobs.job_table import LEASE_S
from controller.state_store import RecordedEntries
from hostlib.protocol import constants
from tests.unit.controller.memory_api import PORTS, Api, MemorySwitches, memory_api


@pytest.fixture
def api() -> Api:
    return memory_api()


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
        "levels": 1,
        "secret": second["secret"],
        "token": second["token"],
    }
    code, polled = api.call("GET", "/v1/jobs/demo/ranks/0")
    own = {"rank": 0, "switch_port": first["switch_port"], "fabric": first["fabric"]}
    second.pop("token")
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
        (constants.RANK_ALL, {}, 422, "a server joins at /v1/jobs/NAME/server"),
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
    got, answer = api.call("POST", f"/v1/jobs/demo/ranks/{rank}", body)
    assert got == code
    assert list(answer) == ["detail"]
    assert says in answer["detail"]
    assert len(answer["detail"].splitlines()) == 1
    assert [r["rank"] for r in api.call("GET", "/v1/jobs/demo")[1]["ranks"]] == [0]


def test_a_full_switch_says_so(api: Api) -> None:
    assert api.join(0, world_size=PORTS - 1)[0] == 200
    code, answer = api.join(0, job="other")
    assert (code, answer["detail"]) == (503, "job other needs 2 switch ports; free: 1: wait for a job to end")
    code, answer = api.join(0, job="other", world_size=PORTS + 1)
    assert (code, answer["detail"]) == (422, f"job other needs {PORTS + 1} switch ports; the fabric has {PORTS}")


def test_a_job_waits_in_the_queue(api: Api) -> None:
    api.join(0, world_size=PORTS)
    code, first = api.join(0, job="next", queue=True)
    assert (code, first.keys(), first["queue_position"]) == (200, {"state", "queue_position", "token"}, 1)
    api.join(0, job="urgent", queue=True, priority=9)
    assert api.call("GET", "/v1/jobs/next/ranks/0") == (200, {"state": "queued", "queue_position": 2})
    described = api.call("GET", "/v1/jobs/next")[1]
    assert (described["state"], described["queue_position"], described["pools"]) == ("queued", 2, [])
    api.call("DELETE", "/v1/jobs/demo/ranks/0")
    code, place = api.call("GET", "/v1/jobs/next/ranks/0")
    assert (code, place["state"]) == (200, "waiting") and place["switch_port"] and "queue_position" not in place


def test_a_switch_is_drained_and_a_job_ended(api: Api) -> None:
    api.join(0, world_size=1)
    assert api.call("POST", "/v1/switches/switch/drain") == (
        200,
        {"switch": "switch", "draining": True, "jobs": ["demo"]},
    )
    code, answer = api.join(0, job="other")
    assert code == 503 and answer["detail"].endswith(
        "free: 0; no new jobs on switch, which drains: wait for a job to end"
    )
    assert api.call("POST", "/v1/switches/nowhere/drain")[0] == 404
    assert api.call("DELETE", "/v1/jobs/demo") == (200, {"state": "ended"})
    assert api.call("DELETE", "/v1/jobs/demo")[0] == 404
    assert api.switch.installed == []
    assert api.call("DELETE", "/v1/switches/switch/drain") == (
        200,
        {"switch": "switch", "draining": False, "jobs": []},
    )
    assert api.join(0, job="other")[0] == 200
    kinds = [event["kind"] for event in api.call("GET", "/v1/events")[1]["events"]]
    assert kinds.count("drain") == 2
    assert api.call("GET", "/v1/history")[1]["jobs"][0]["why"] == "it was ended by name"


def test_what_cannot_be_saved_is_refused(api: Api) -> None:
    def full(dump: dict[str, Any]) -> None:
        raise StateError("the controller's state cannot be written: disk full")

    save, api.service.jobs._saving = api.service.jobs._saving, full
    assert api.join(0) == (503, {"detail": "the controller's state cannot be written: disk full"})
    assert api.call("GET", "/health")[0] == 503
    assert api.call("GET", "/v1/jobs") == (200, {"jobs": []})
    api.service.jobs._saving = save
    api.expire()
    assert api.call("GET", "/health")[0] == 200 and api.join(0)[0] == 200


def test_health_says_when_switches_are_not_written_to_for_want_of_a_record(api: Api) -> None:
    """A job that is complete at once is refused before anything has been tried that `save` would have to do."""
    state: list[str] = ["full"]

    def begin() -> None:
        if state:
            raise StateError("the controller's state cannot be written: disk full")

    def save(dump: dict[str, Any]) -> None:
        begin()

    jobs = api.service.jobs
    jobs._entries, jobs._saving = RecordedEntries(api.switch, begin), save
    assert api.join(0, world_size=1)[0] == 503
    assert api.call("GET", "/health")[0] == 503 and api.switch.installed == []
    api.expire()
    assert api.call("GET", "/health")[0] == 503
    state.clear()
    api.expire()
    assert api.call("GET", "/health")[0] == 200 and api.join(0, world_size=1)[0] == 200


def test_health_says_that_the_disk_is_full_before_anybody_joins(api: Api) -> None:
    api.service.disk_full = lambda: True
    detail = "the disk with the controller's state is full: make room"
    assert api.call("GET", "/health") == (503, {"detail": detail})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs/other"),
        ("GET", "/v1/jobs/demo/ranks/1"),
        ("DELETE", "/v1/jobs/demo/ranks/1"),
        ("DELETE", "/v1/jobs/other/ranks/0"),
        ("GET", "/v1/jobs/other/ranks/0"),
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
    assert api.call("POST", "/v1/jobs/demo/ranks/1/heartbeat", {"position": 77}) == (
        200,
        {"state": "ready", "port": "unchecked"},
    )
    api.seconds = 4.0
    assert api.call("POST", "/v1/jobs/demo/ranks/1/heartbeat", {"position": 77}) == (
        200,
        {"state": "ready", "port": "unchecked"},
    )
    api.seconds = 5.0
    assert api.call("POST", "/v1/jobs/demo/ranks/1/heartbeat", {"position": -1})[0] == 422
    code, job = api.call("GET", "/v1/jobs/demo")
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
        "port": "unchecked",
        "port_text": "rank 1 of job demo is at port 2 of switch; that was not checked",
    }
    assert job["ranks"][0]["last_heartbeat_s"] == 5.0


def test_polling_counts_as_a_sign_of_life(api: Api) -> None:
    api.join(0)
    api.seconds = LEASE_S - 1
    assert api.call("GET", "/v1/jobs/demo/ranks/0")[0] == 200
    api.seconds = 2 * LEASE_S - 2
    api.join(0, job="other")  # joining is when leases are looked at
    assert api.call("GET", "/v1/jobs/demo")[1]["ranks"][0]["state"] == "joined"


def test_the_last_to_leave_ends_the_job(api: Api) -> None:
    api.join(0)
    api.join(1)
    assert api.call("DELETE", "/v1/jobs/demo/ranks/0") == (200, {"state": "left"})
    assert api.switch.installed == ["demo"]
    assert api.call("DELETE", "/v1/jobs/demo/ranks/1") == (200, {"state": "left"})
    assert api.switch.installed == []
    assert api.call("GET", "/v1/jobs/demo")[0] == 404


def test_a_jobs_secret_is_told_to_its_ranks_alone_and_is_new_in_its_next_life(api: Api) -> None:
    assert "secret" not in api.join(0)[1]
    secret = api.join(1)[1]["secret"]
    assert len(bytes.fromhex(secret)) == 16
    assert api.call("GET", "/v1/jobs/demo/ranks/0")[1]["secret"] == secret
    assert api.dumps[-1]["jobs"][0]["secret"] == secret
    for path in ("/v1/status", "/v1/jobs/demo", "/v1/jobs"):
        assert secret not in str(api.call("GET", path))
    for rank in (0, 1):
        api.call("DELETE", f"/v1/jobs/demo/ranks/{rank}")
    for rank in (0, 1):
        answer = api.join(rank)[1]
    assert answer["secret"] != secret


def test_what_changed_is_kept_for_a_restart(api: Api) -> None:
    api.join(0)
    api.join(1)
    assert [job["name"] for job in api.dumps[-1]["jobs"]] == ["demo"]
    assert api.dumps[-1]["last_epoch"] == 1_700_000_000
    api.call("DELETE", "/v1/jobs/demo/ranks/0")
    api.call("DELETE", "/v1/jobs/demo/ranks/1")
    assert api.dumps[-1] == {"last_epoch": 1_700_000_000, "drained": [], "jobs": []}


def test_who_is_there_is_told_without_asking_the_switches(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemorySwitches, "describe", lambda self: pytest.fail("the switches were asked"))
    code, answer = api.call("GET", "/v1")
    assert code == 200 and answer["netfold"] == "controller" and answer["version"]


def test_status_says_what_is_going_on(api: Api) -> None:
    api.join(0)
    code, status = api.call("GET", "/v1/status")
    assert code == 200
    assert status["version"] == "1.2"
    assert status.items() >= {"kind": "embedded", "elements": 64, "slots": constants.SLOTS, "up": True}.items()
    assert [switch["name"] for switch in status["switches"]] == ["root", "leaf"]
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    assert (status["events"]["completed"], status["events"]["sent_up"], status["drops"]["stale"]) == (5, 5, 3)
    assert set(status["events"]) == set(constants.EVENTS) and set(status["drops"]) == set(constants.DROPS)


def test_slots_are_listed_with_their_jobs(api: Api) -> None:
    api.join(0, slots=64)
    api.join(0, world_size=1, job="two", slots=32, udp_ports=[6000, 6001])
    code, slots = api.call("GET", "/v1/slots")
    assert (code, slots["slots"], slots["used"]) == (200, constants.SLOTS, 128)
    assert [(taken["job"], taken["first_slot"], taken["slots"]) for taken in slots["ranges"]] == [
        ("demo", 0, 64),
        ("two", 64, 32),
        ("two", 96, 32),
    ]


def test_shared_slots_count_once(api: Api) -> None:
    for job in ("one", "two"):
        api.join(0, world_size=1, job=job, policy="shared")
    slots = api.call("GET", "/v1/slots")[1]
    assert slots["used"] == 128
    assert [tuple(taken.values()) for taken in slots["ranges"]] == [("one", 0, 128, True), ("two", 0, 128, True)]


def test_jobs_are_listed(api: Api) -> None:
    assert api.call("GET", "/v1/jobs") == (200, {"jobs": []})
    api.join(0)
    assert api.call("GET", "/v1/jobs")[1]["jobs"] == [api.call("GET", "/v1/jobs/demo")[1]]


@pytest.mark.parametrize(
    ("method", "path", "code", "says"),
    [
        ("GET", "/v2/jobs", 404, "there is nothing at /v2/jobs; /docs lists what there is"),
        ("PUT", "/v1/jobs", 405, "PUT is not possible there; legal: GET"),
    ],
)
def test_what_the_api_does_not_have_is_refused_in_one_line(
    api: Api, method: str, path: str, code: int, says: str
) -> None:
    assert api.call(method, path) == (code, {"detail": says})


def test_every_answer_and_refusal_is_described(api: Api) -> None:
    code, described = api.call("GET", "/v1/openapi.json")
    assert code == 200
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                if path.endswith("/stream") and status == "200":
                    assert list(response["content"]) == ["text/event-stream"]
                    continue
                if path == "/metrics":
                    assert list(response["content"]) == ["text/plain"]
                    continue
                schema = response["content"]["application/json"]["schema"]
                name = schema["$ref"].removeprefix("#/components/schemas/")
                assert (name == "Refusal") == (status >= "400"), (method, path, status)
                assert described["components"]["schemas"][name]["type"] == "object"


def test_the_page_of_the_description_loads_nothing_from_elsewhere(api: Api) -> None:
    text = api.read("/docs")
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources and all(source.startswith("/") for source in sources)
    assert all(api.read(source) for source in sources if not source.endswith(".png"))
    assert "://" not in text.replace("window.location.origin", "")


def test_a_dead_switch_is_down_and_takes_nobody(api: Api) -> None:
    api.join(0)
    api.switch.up = False
    code, status = api.call("GET", "/v1/status")
    assert (code, status["up"], status["events"]["completed"]) == (200, False, 5)
    assert [job["name"] for job in status["jobs"]] == ["demo"]
    code, answer = api.join(1)
    assert (code, answer["detail"]) == (503, "the switch at 127.0.0.1:50051 is gone")


def test_a_server_joins_like_a_rank(api: Api) -> None:
    api.join(0, world_size=1, policy="server")
    assert api.call("GET", "/v1/jobs/demo/server")[0] == 404
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [7000], "policy": "server"}
    code, place = api.call("POST", "/v1/jobs/demo/server", body)
    assert (code, place["state"], place["rank"], place["policy"]) == (200, "ready", constants.RANK_ALL, "server")
    place.pop("token")
    assert api.call("GET", "/v1/jobs/demo/server")[1] == place
    worker, server = ({"address": "127.0.0.1", "udp_ports": [port]} for port in (5000, 7000))
    assert (place["server"], place["workers"]) == (server, [worker])
    answer = api.call("GET", "/v1/jobs/demo/ranks/0")[1]
    assert answer["server"] == server and "workers" not in answer
    assert api.call("POST", "/v1/jobs/demo/server/heartbeat", {"position": 3}) == (
        200,
        {"state": "ready", "port": "unchecked"},
    )
    assert [rank["position"] for rank in api.call("GET", "/v1/jobs/demo")[1]["ranks"]] == [0, 3]
    assert api.call("DELETE", "/v1/jobs/demo/server") == (200, {"state": "left"})
    assert api.call("DELETE", "/v1/jobs/demo/ranks/0") == (200, {"state": "left"})
    assert api.switch.installed == []


def test_a_job_of_the_sum_policy_has_no_server(api: Api) -> None:
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [7000]}
    code, answer = api.call("POST", "/v1/jobs/demo/server", body)
    assert (code, answer["detail"]) == (422, "policy sum has no server; server, shared and chunk do")
