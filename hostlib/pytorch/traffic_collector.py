"""What this rank's groups and sessions carried, as Prometheus metrics. Needs prometheus_client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from hostlib.pytorch.group_traffic import all_traffic


class TrafficCollector(Collector):
    """Reads the counters when it is scraped. Groups that bear the same name one after the other are one."""

    def collect(self) -> Iterable[Metric]:
        tensors: Counter[tuple[str, ...]] = Counter()
        calls: Counter[tuple[str, ...]] = Counter()
        failures: Counter[tuple[str, ...]] = Counter()
        by_hosts: Counter[tuple[str, ...]] = Counter()
        for traffic in all_traffic():
            for operation, means in traffic.as_json().items():
                for path, carried in means.items():
                    labels = (traffic.name, operation, path)
                    tensors[labels] += carried["bytes"]
                    calls[labels] += carried["calls"]
            group = (traffic.name,)
            failures[group] += len(traffic.failures)
            by_hosts[group] += sum(failure["bytes_by_hosts"] for failure in traffic.failures)
        by_path, by_group = ("group", "operation", "path"), ("group",)
        yield _family("bytes", "Bytes of this rank's tensors", by_path, tensors)
        yield _family("operations", "Operations that this rank has begun", by_path, calls)
        yield _family("fabric_failures", "Failures of the switch that this rank has seen", by_group, failures)
        yield _family("fallback_bytes", "Bytes that hosts carried for a switch that had failed", by_group, by_hosts)


def _family(
    name: str, description: str, labels: tuple[str, ...], values: Counter[tuple[str, ...]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"netfold_rank_{name}", description, labels=labels)
    for each, value in sorted(values.items()):
        family.add_metric(each, value)
    return family
