"""Prometheus metrics of a rank's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.registry import Collector


def prometheus_collector() -> Collector:
    """Make a collector of what this rank's process groups and sessions have carried, for a registry of Prometheus.

        prometheus_client.REGISTRY.register(netfold.prometheus_collector())
        prometheus_client.start_http_server(9400 + int(os.environ["LOCAL_RANK"]))

    It reads counters when it is scraped, and costs nothing otherwise. One is enough for all groups and sessions of a
    process, also for those that begin later. Its metrics, in bytes and calls: `netfold_rank_bytes_total` and
    `netfold_rank_operations_total` with the labels `group`, `operation` and `path` (`fabric`, `hosts` or `gloo`);
    `netfold_rank_fabric_failures_total` and `netfold_rank_fallback_bytes_total` with the label `group`.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed.

    Source: docs/torch.md, "Prometheus metrics of a rank".
    """
    from hostlib.pytorch.traffic_collector import TrafficCollector

    return TrafficCollector()
