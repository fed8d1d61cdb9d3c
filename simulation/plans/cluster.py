"""Clusters: the workers that a parallel plan is for, and the network between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulation.errors import SimulationError
from simulation.experiments.scenario import RUNTIME, Scenario, Semantics
from simulation.models.host_rates import HostRates
from simulation.models.workload_source import WorkloadSource
from simulation.plans.parallel_plan import ParallelPlan
from simulation.simulator.network import Network


@dataclass(frozen=True, slots=True)
class Cluster:
    """Workers and their network.

    Attributes:
        workers: GPUs of a job, of which each host has `gpus_per_host`.
        memory_bytes: of each worker's GPU; None if it is unknown, and then everything fits.
        speed: how many times as fast workers compute as the workload's times say.
        host_link_gb_s: of each GPU to the others of its host, in each direction, 10^9 bytes per second.
        host_rates: what hosts' cores let through; None: as much as their links.
        semantics: what hosts and switches do, but for the plan's bucket and slots.
        jobs: identical ones at the same time; apart: each on its own hosts.
        shrink: tensors are so many times smaller and links so many times slower.

    Raises:
        SimulationError: a number is illegal.
    """

    workers: int
    network: Network
    memory_bytes: int | None = None
    speed: float = 1.0
    gpus_per_host: int = 1
    host_link_gb_s: float = float("inf")
    host_rates: HostRates | None = None
    semantics: Semantics = RUNTIME
    jobs: int = 1
    apart: bool = False
    shrink: float = 1.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.gpus_per_host < 1 or self.workers % self.gpus_per_host:
            raise SimulationError(f"{self.workers} workers cannot be on hosts with {self.gpus_per_host} GPUs each")
        if not 0 < self.speed < float("inf"):
            raise SimulationError(f"a cluster's speed must be above 0, not {self.speed}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise SimulationError(f"a GPU's memory must be at least 1 byte, not {self.memory_bytes}")

    @property
    def hosts(self) -> int:
        return self.workers // self.gpus_per_host

    def subject(self, workload: WorkloadSource) -> WorkloadSource:
        """The workload at this cluster's speed."""
        return workload if self.speed == 1 else replace(workload, trace=workload.trace.scale_compute(1 / self.speed))

    def scenario(self, workload: WorkloadSource, plan: ParallelPlan) -> Scenario:
        """A plan as the simulator plays it.

        Raises:
            SimulationError: the plan is for another number of workers, or is a pipeline across GPUs of one host.
        """
        if plan.schedule is not None and self.gpus_per_host > 1:
            raise SimulationError(f"{plan.name}: pipelines have hosts of one GPU each")
        if plan.workers != self.workers:
            raise SimulationError(f"{plan.name} is for {plan.workers} workers, and there are {self.workers}")
        return Scenario(
            self.subject(workload),
            plan.name,
            self.hosts,
            self.network,
            self.semantics_of(plan),
            self.jobs,
            self.apart,
            shrink=self.shrink,
            gpus_per_host=self.gpus_per_host,
            host_link_gb_s=self.host_link_gb_s,
            host_rates=self.host_rates,
        )

    def semantics_of(self, plan: ParallelPlan) -> Semantics:
        """The semantics with a plan's bucket and slots."""
        bucket, slots = plan.bucket_bytes, plan.slots
        return replace(
            self.semantics,
            bucket_bytes=self.semantics.bucket_bytes if bucket is None else bucket,
            slots=self.semantics.slots if slots is None else slots,
        )
