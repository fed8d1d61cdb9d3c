"""Prometheus metrics, /health, and the dashboard that shows them."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.events.event_log import KINDS
from controller.jobs.port_check import port_numbers
from hostlib.protocol import constants
from tests.conftest import ROOT
from tests.unit.controller.memory_api import Api, memory_api

PAGE = ROOT / "docs" / "monitoring.md"


@pytest.fixture
def api() -> Api:
    return memory_api()


def samples(api: Api) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(api.read("/metrics"))
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(api: Api, name: str, **labels: str) -> float:
    return samples(api)[name, frozenset(labels.items())]


def test_switches_ports_and_drops_are_counted(api: Api) -> None:
    found = samples(api)
    assert value(api, "netfold_switch_up", switch="root") == 1
    assert value(api, "netfold_port_bytes_total", switch="root", port="1", direction="in") == 600
    assert value(api, "netfold_port_packets_total", switch="root", port="1", direction="out") == 5
    assert value(api, "netfold_packet_drops_total", switch="leaf", reason="stale") == 2
    assert value(api, "netfold_packet_events_total", switch="root", event="completed") == 5
    reasons = {dict(labels)["reason"] for name, labels in found if name == "netfold_packet_drops_total"}
    assert reasons == set(constants.DROPS)
    api.switch.up = False
    api.seconds += 1
    assert value(api, "netfold_switch_up", switch="leaf") == 0


def test_jobs_ranks_and_slots_are_gauges(api: Api) -> None:
    assert value(api, "netfold_jobs", state="ready") == 0
    api.join(0, world_size=1, job="one", slots=64)
    api.join(0, job="two", slots=32)
    api.call("POST", "/v1/jobs/one/ranks/0/heartbeat", {"position": 7})
    api.seconds = 4.0
    assert value(api, "netfold_jobs", state="ready") == value(api, "netfold_jobs", state="waiting") == 1
    assert value(api, "netfold_job_slots", job_name="one") == 64
    assert (value(api, "netfold_slots"), value(api, "netfold_slots_used")) == (constants.SLOTS, 96)
    assert value(api, "netfold_job_ranks", job_name="two", state="joined") == 1
    assert value(api, "netfold_heartbeat_age_seconds", job_name="one", rank="0") == 4
    assert value(api, "netfold_rank_position", job_name="one", rank="0") == 7
    assert value(api, "netfold_log_events_total", kind="job-ready") == 1


def test_requests_are_counted_by_route(api: Api) -> None:
    for job in ("a", "b"):
        api.call("GET", f"/v1/jobs/{job}")
    for path in ("/x", "/y"):
        api.call("GET", path)
    route = "/v1/jobs/{job}"
    assert value(api, "netfold_http_requests_total", method="GET", route=route, status="404") == 2
    assert value(api, "netfold_http_request_seconds_count", route=route) == 2
    # Strangers cannot make as many series as they like.
    assert value(api, "netfold_http_requests_total", method="any", route="none", status="404") == 2


def test_no_label_is_one_of_prometheus(api: Api) -> None:
    """It would put its own in their place, and call ours exported_job: nothing could be told apart by job."""
    api.join(0)
    labels = {label for _, labels in samples(api) for label, _ in labels}
    assert "job_name" in labels and not labels & {"job", "instance"}


def test_health_is_that_of_switches_and_files(api: Api) -> None:
    assert api.call("GET", "/health") == (200, {"status": "ok"})
    api.switch.up = False
    assert api.call("GET", "/health") == (503, {"detail": "the switch at 127.0.0.1:50051 is gone"})


def test_the_dashboard_shows_metrics_that_there_are(api: Api) -> None:
    api.join(0, world_size=1)
    job, rank = api.service.jobs.member("demo", 0)
    api.call("POST", "/v1/jobs/demo/ranks/0/heartbeat", {"echoes": port_numbers(job, rank)})
    there = {name for name, _ in samples(api)}
    panels = api.call("GET", "/grafana.json")[1]["panels"]
    used = {
        name for panel in panels for target in panel["targets"] for name in re.findall(r"netfold_\w+", target["expr"])
    }
    assert all(panel["targets"] for panel in panels)
    assert used <= there
    # And every metric is on it, but for those that a panel's own are made of.
    families = {family.name for family in text_string_to_metric_families(api.read("/metrics"))}
    shown = {re.sub("_(total|bucket)$", "", name) for name in used}
    assert {name for name in families if not name.endswith("_created")} == shown


def test_the_documentation_lists_what_there_is(api: Api) -> None:
    api.join(0)
    page = PAGE.read_text()
    named = re.findall(r"^\| `(netfold_\w+)", page, re.M)
    families = [family.name for family in text_string_to_metric_families(api.read("/metrics"))]
    # Prometheus' library names a counter without its suffix.
    assert {name.removesuffix("_total") for name in named} == {
        name for name in families if not name.endswith("_created")
    }
    assert {name for name, _ in samples(api)} >= {name for name in named if name.endswith("_total")}
    assert re.findall(r"^\| `([a-z]+(?:-[a-z]+)?)` \|", page, re.M) == list(KINDS)
    paths = {
        path
        for path in api.call("GET", "/v1/openapi.json")[1]["paths"]
        if "/ranks" not in path and "/server" not in path
    }
    assert {path.replace("{", "").replace("}", "") for path in paths} == set(
        re.findall(r"`(?:GET |POST |DELETE )?(/[\w/{}]+)` \|", page.replace("JOB", "job").replace("SWITCH", "switch"))
    )
