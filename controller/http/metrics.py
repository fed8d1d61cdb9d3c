"""Prometheus metrics: the status as gauges and counters, and requests to the API."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.http.service import Service
from controller.jobs.job import member_name

AGE_S = 0.5  # several scrapers share a look at the switches
JOB_STATES = ("queued", "waiting", "ready")
RANK_STATES = ("joined", "lost", "left")
# Not "job": Prometheus has a label of that name of its own, and would rename this one.
JOB = "job_name"


class FabricCollector(Collector):
    """Reads the status when it is scraped."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        status = self._service.recent_status(AGE_S)
        yield from _about_switches(status)
        yield from _about_jobs(status)
        slots = self._service.describe_slots()
        yield GaugeMetricFamily("netfold_slots", "Slots of each switch", slots["slots"])
        yield GaugeMetricFamily("netfold_slots_used", "Slots that jobs have, each counted once", slots["used"])
        happened = CounterMetricFamily("netfold_log_events", "Events in the controller's log", labels=["kind"])
        for kind, count in sorted(self._service.events.counts.items()):
            happened.add_metric([kind], count)
        yield happened


def _about_switches(status: dict[str, Any]) -> Iterable[Metric]:
    info = GaugeMetricFamily("netfold_info", "The controller", labels=["version", "kind", "elements"])
    info.add_metric([status["version"], status["kind"], str(status["elements"])], 1)
    up = GaugeMetricFamily("netfold_switch_up", "Whether the switch is at work", labels=["switch"])
    restarts = CounterMetricFamily("netfold_switch_restarts", "Recoveries of the switch", labels=["switch"])
    packets, bytes_ = (
        CounterMetricFamily(f"netfold_port_{what}", f"{what.title()} at a port", labels=["switch", "port", "direction"])
        for what in ("packets", "bytes")
    )
    events = CounterMetricFamily("netfold_packet_events", "What packets did, by event", labels=["switch", "event"])
    drops = CounterMetricFamily("netfold_packet_drops", "Dropped packets, by reason", labels=["switch", "reason"])
    for switch in status["switches"]:
        name = switch["name"]
        up.add_metric([name], switch["up"])
        restarts.add_metric([name], switch["restarts"])
        for port, counts in switch["ports"].items():
            for way in ("in", "out"):
                packets.add_metric([name, port, way], counts[f"packets_{way}"])
                bytes_.add_metric([name, port, way], counts[f"bytes_{way}"])
        for event, count in switch["events"].items():
            events.add_metric([name, event], count)
        for reason, count in switch["drops"].items():
            drops.add_metric([name, reason], count)
    cables = GaugeMetricFamily(
        "netfold_cable_right", "Whether the cable leads where the topology says", labels=["switch", "port"]
    )
    for cable in status["cables"]:
        if cable["state"] != "unchecked":
            cables.add_metric([cable["sender"]["switch"], str(cable["sender"]["port"])], cable["state"] == "right")
    return info, up, restarts, packets, bytes_, events, drops, cables


def _about_jobs(status: dict[str, Any]) -> Iterable[Metric]:
    jobs = GaugeMetricFamily("netfold_jobs", "Jobs", labels=["state"])
    tally = Tally(job["state"] for job in status["jobs"])
    for state in JOB_STATES:
        jobs.add_metric([state], tally[state])
    slots = GaugeMetricFamily("netfold_job_slots", "Slots of the job on each of its switches", labels=[JOB])
    ranks = GaugeMetricFamily("netfold_job_ranks", "Ranks of the job, with its server", labels=[JOB, "state"])
    ages = GaugeMetricFamily(
        "netfold_heartbeat_age_seconds", "Time since the rank's last heartbeat", labels=[JOB, "rank"]
    )
    positions = GaugeMetricFamily("netfold_rank_position", "Chunks of the rank's stream", labels=[JOB, "rank"])
    ports = GaugeMetricFamily("netfold_rank_port_right", "Whether the rank is at its switch port", labels=[JOB, "rank"])
    for job in status["jobs"]:
        slots.add_metric([job["name"]], sum(pool["slots"] for pool in job["pools"]))
        states = Tally(rank["state"] for rank in job["ranks"])
        for state in RANK_STATES:
            ranks.add_metric([job["name"], state], states[state])
        for rank in job["ranks"]:
            who = [job["name"], member_name(rank["rank"]).removeprefix("rank ").removeprefix("the ")]
            ages.add_metric(who, rank["last_heartbeat_s"])
            positions.add_metric(who, rank["position"])
            if rank["port"] != "unchecked":
                ports.add_metric(who, rank["port"] == "right")
    return jobs, slots, ranks, ages, positions, ports


class RequestMetrics:
    """Counts and times an application's requests: ASGI middleware."""

    def __init__(self, app: Any, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter("netfold_http_requests", "Requests", ["method", "route", "status"], registry=registry)
        self._seconds = Histogram(
            "netfold_http_request_seconds", "Time until the answer begins", ["route"], registry=registry
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # A path that there is not is one of any number.
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if route != "none" else "any"
                self._requests.labels(method, route, message["status"]).inc()
                self._seconds.labels(route).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, answer)
