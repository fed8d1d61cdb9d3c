"""Point-to-point links between workers, as the thesis's equations take them: a latency and a bandwidth each."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

from hostlib.schedules.schedule import worker
from hostlib.system.pair_links import read_links
from hostlib.topology.topology import Cable, Topology
from simulation.errors import SimulationError
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """From one worker to another.

    Attributes:
        bytes_s: bytes per second.
    """

    latency_s: float
    bytes_s: float

    def transfer_s(self, size: float) -> float:
        return self.latency_s + size / self.bytes_s


def ring_links(workload: WorkloadSource, cluster: Cluster, plan: ParallelPlan) -> list[WorkerLink]:
    """From each worker to the next, and from the last to the first; GPUs of one host are neighbours.

    Raises:
        TopologyError, NetworkError: the network is impossible.
    """
    topology = cluster.scenario(workload, plan).topology()
    hosts = [number // cluster.gpus_per_host for number in range(cluster.workers)]
    following = [*hosts[1:], hosts[0]]
    return [_between(cluster, topology, here, there) for here, there in zip(hosts, following, strict=True)]


def probed_links(path: Path, workers: int) -> list[WorkerLink]:
    """Those that `hostlib bench --probe --output FILE` measured, from each worker to the next, and back to the first.

    Raises:
        HostlibError: the file cannot be read.
        SimulationError: it has fewer workers.
    """
    found = {frozenset((link.first, link.second)): link for link in read_links(path)}
    pairs = [frozenset((number, (number + 1) % workers)) for number in range(workers)]
    if not all(pair in found for pair in pairs):
        raise SimulationError(f"{path} has no links between {workers} workers")
    return [WorkerLink(found[pair].latency_us / 1e6, found[pair].gbit_s * 1e9 / 8) for pair in pairs]


def _between(cluster: Cluster, topology: Topology, here: int, there: int) -> WorkerLink:
    if here == there:
        return WorkerLink(0.0, cluster.host_link_gb_s * 1e9)
    ways = [_upwards(topology, worker(host)) for host in (here, there)]
    shared = set(ways[0]) & set(ways[1])
    cables = [cable for way in ways for name, cable in way.items() if name not in shared]
    seconds = sum(cable.delay_ns for cable in cables) / 1e9 + cluster.network.overhead_ns / 1e9
    rate = min(inf if cable.rate_bits_s is None else cable.rate_bits_s for cable in cables)
    return WorkerLink(seconds, rate * cluster.shrink / 8)


def _upwards(topology: Topology, host: str) -> dict[str, Cable]:
    """The cables from a host to the root, by their lower ends."""
    found: dict[str, Cable] = {}
    cable = topology.above(host)
    while cable is not None:
        found[cable.lower] = cable
        cable = topology.above(cable.upper)
    return found
