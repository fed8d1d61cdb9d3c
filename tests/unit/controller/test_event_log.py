"""The event log: what is recorded of jobs and refusals, what is kept in files, and how these stay small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.events.event_log import FLOOD_EVENTS, FLOOD_S, EventLog
from controller.events.json_lines import JsonLines
from controller.jobs.job_table import LEASE_S
from tests.unit.controller.memory_api import Api, memory_api


@pytest.fixture
def api() -> Api:
    return memory_api()


def kinds(api: Api) -> list[str]:
    return [event["kind"] for event in api.call("GET", "/v1/events?most=1000")[1]["events"]]


def test_a_job_is_followed_from_its_first_rank_to_its_end(api: Api) -> None:
    api.join(0)
    api.join(1)
    api.call("POST", "/v1/jobs/demo/ranks/1/heartbeat", {"position": 9})
    for rank in range(2):
        api.call("DELETE", f"/v1/jobs/demo/ranks/{rank}")
    answer = api.call("GET", "/v1/events")[1]
    assert [event["kind"] for event in answer["events"]] == ["job-waiting", "job-ready", "job-ended"]
    assert [event["id"] for event in answer["events"]] == [1, 2, 3] and answer["last_id"] == 3
    assert answer["events"][-1]["text"] == "job demo has ended: its ranks have left"
    (ended,) = api.call("GET", "/v1/history")[1]["jobs"]
    assert (ended["name"], ended["why"], ended["slots"]) == ("demo", "its ranks have left", 128)
    assert ended["positions"] == {"rank 0": 0, "rank 1": 9}
    assert ended["began_s"] <= ended["ready_s"] <= ended["ended_s"]


def test_a_rank_that_is_silent_is_lost_and_may_come_back(api: Api) -> None:
    api.join(0)
    api.join(1)
    api.seconds = LEASE_S - 1
    api.call("POST", "/v1/jobs/demo/ranks/0/heartbeat", {})
    api.seconds = LEASE_S + 1
    api.expire()
    api.call("POST", "/v1/jobs/demo/ranks/1/heartbeat", {})
    api.expire()
    assert kinds(api)[-2:] == ["rank-lost", "rank-back"]
    lost = api.call("GET", "/v1/events?after=2&most=1")[1]["events"][0]
    assert (lost["job"], lost["rank"], lost["switch"]) == ("demo", 1, "switch")
    api.seconds = 3 * LEASE_S
    api.expire()
    assert kinds(api)[-3:] == ["rank-lost", "rank-lost", "job-ended"]
    assert api.call("GET", "/v1/history")[1]["jobs"][0]["why"] == "no heartbeats from rank 0, rank 1"


def test_who_ends_a_job_may_say_why(api: Api) -> None:
    api.join(0, world_size=1)
    with api.service.changing("the switch root failed") as jobs:
        jobs.abandon()
    assert api.call("GET", "/v1/history")[1]["jobs"][0]["why"] == "the switch root failed"


def test_a_refused_join_is_recorded_with_its_reason(api: Api) -> None:
    api.join(0)
    for rank, changes, says in (
        (1, {"world_size": 3}, "rank 1 of job demo at 127.0.0.1 was refused: job demo has world size 2"),
        (1, {"mac": "nonsense"}, "was refused: body.mac"),
        ("x", {}, "a rank of job demo at 127.0.0.1 was refused: path.rank"),
    ):
        api.call(
            "POST",
            f"/v1/jobs/demo/ranks/{rank}",
            {"world_size": 2, "address": "127.0.0.1", "udp_ports": [1], **changes},
        )
        last = api.call("GET", "/v1/events")[1]["events"][-1]
        assert last["kind"] == "join-refused" and says in last["text"]


def test_a_flood_of_refusals_is_counted_not_listed() -> None:
    now = [100.0]
    events = EventLog(None, lambda: -now[0], clock=lambda: now[0])  # the other clock may be set back meanwhile
    for _ in range(5 * FLOOD_EVENTS):
        events.refused("rank 0 of job x was refused", "x", 0)
    assert len(events.last(1000)) == FLOOD_EVENTS
    now[0] += FLOOD_S
    events.refused("rank 0 of job x was refused", "x", 0)
    assert (
        events.last(1)[0].text == f"rank 0 of job x was refused (and {4 * FLOOD_EVENTS} refusals that are not listed)"
    )
    assert events.counts["join-refused"] == 5 * FLOOD_EVENTS + 1


def test_a_restarted_controller_goes_on_counting(tmp_path: Path) -> None:
    first = EventLog(tmp_path, lambda: 5.0)
    first.append("controller-started", "one")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"id": 7, "ti')  # killed within a record
    second = EventLog(tmp_path, lambda: 6.0)
    second.append("controller-started", "two")
    assert [(event.id, event.text) for event in EventLog(tmp_path, lambda: 7.0).last(9)] == [(1, "one"), (2, "two")]
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_jobs_that_go_on_under_a_restarted_controller_are_no_news(tmp_path: Path) -> None:
    api = memory_api(EventLog(tmp_path, lambda: 5.0))
    api.join(0, world_size=1)
    dumped = api.service.jobs.dump()
    later = memory_api(EventLog(tmp_path, lambda: 9.0), dumped)
    assert kinds(later) == ["job-waiting", "job-ready"]
    later.tokens |= api.tokens
    later.call("DELETE", "/v1/jobs/demo/ranks/0")
    (ended,) = later.call("GET", "/v1/history")[1]["jobs"]
    assert (ended["began_s"], ended["ready_s"], ended["ended_s"]) == (5.0, 5.0, 9.0)


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_are_bounded(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "log", most_bytes=100, files=3)
    for number in range(100):
        lines.append({"n": number})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert records(tmp_path / "log")[-1] == {"n": 99}
    read = [record["n"] for record in lines.read()]
    assert read == list(range(read[0], 100)) and read[0] > 50


def test_a_disk_that_is_full_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "state"
    events = EventLog(folder, lambda: 5.0)  # a folder that is not there is as good as a full disk
    for text in ("one", "two"):
        events.append("drain", text)
    assert [event.text for event in events.last(9)] == ["one", "two"]
    assert events.failed and caplog.text.count("what happens is not kept") == 1
    folder.mkdir()
    events.append("drain", "three")
    assert events.failed is None and [record["text"] for record in records(folder / "events.jsonl")] == ["three"]
