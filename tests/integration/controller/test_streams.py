"""Server-sent events of a real controller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from controller.http.event_routes import MOST_STREAMS
from tests.conftest import Fabric


@contextmanager
def stream(fabric: Fabric, path: str, headers: dict[str, str] | None = None) -> Iterator[Iterator[Any]]:
    """The data of each event."""
    with httpx.stream("GET", fabric.http + path, timeout=15, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        yield (json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:"))


def join(fabric: Fabric, job: str) -> None:
    body = {"world_size": 1, "address": "127.0.0.1", "udp_ports": [5000]}
    assert fabric.call("POST", f"/v1/jobs/{job}/ranks/0", body)[0] == 200


def test_events_arrive_as_they_happen_and_again_for_who_missed_them(fabric: Fabric) -> None:
    with stream(fabric, "/v1/events/stream") as events:
        join(fabric, "streamed")
        first, second = next(events), next(events)
        assert (first["kind"], second["kind"], second["job"]) == ("job-waiting", "job-ready", "streamed")
        fabric.call("DELETE", "/v1/jobs/streamed/ranks/0")
        ended = next(events)
        assert ended["kind"] == "job-ended"
    with stream(fabric, "/v1/events/stream", {"Last-Event-ID": str(first["id"])}) as events:
        assert [next(events), next(events)] == [second, ended]
    assert fabric.call("GET", f"/v1/events?after={first['id'] - 1}")[1]["events"] == [first, second, ended]


def test_the_status_is_streamed(fabric: Fabric) -> None:
    with stream(fabric, "/v1/status/stream") as statuses:
        before, after = next(statuses), next(statuses)
    assert before["time_s"] < after["time_s"] and before.keys() == fabric.status().keys()


def test_streams_are_bounded_and_do_not_delay_the_end(start_fabric: Callable[..., Fabric]) -> None:
    fabric = start_fabric("--ports", "2")
    with httpx.Client(limits=httpx.Limits(max_connections=None), timeout=15) as client:
        opened = []
        for _ in range(MOST_STREAMS):
            opened.append(client.send(client.build_request("GET", f"{fabric.http}/v1/events/stream"), stream=True))
        code, answer = fabric.call("GET", "/v1/events/stream")
        assert code == 503 and answer["detail"].startswith(f"{MOST_STREAMS} streams of events are open already")
        opened.pop().close()
        give_up = time.monotonic() + 10
        while True:
            # The controller notices that one has gone.
            with client.stream("GET", f"{fabric.http}/v1/events/stream") as response:
                if response.status_code == 200:
                    break
            assert time.monotonic() < give_up
            time.sleep(0.05)
        started = time.monotonic()
        assert fabric.stop() is True
        assert time.monotonic() - started < 5
        for response in opened:
            response.close()
