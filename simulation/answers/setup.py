"""A cell's network and job with other rates and times: the same schedules and dependencies, played again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hostlib.schedules.schedule import worker
from hostlib.topology.topology import Cable, Topology
from simulation.experiments.scenario import Scenario, slowest_s
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Played, play
from simulation.simulator.workload import Variation

MOST_STAGES = 64  # of a pipeline that are told apart


@dataclass(frozen=True, slots=True)
class Setup:
    """What the simulator plays of a scenario."""

    network: Network
    job: Job
    jobs: int = 1
    apart: bool = False

    @classmethod
    def of(cls, scenario: Scenario) -> Setup:
        """A scenario's; one worker represents all where that is possible, which makes many plays cheap.

        Raises:
            SimulationError, HostlibError: the scenario is impossible.
        """
        network, job = scenario.made()
        return cls(network, replace(job, reduce=True), scenario.jobs, scenario.apart)

    def play(self, with_bytes: bool = True) -> Played:
        return play(self.network, [self.job] * self.jobs, self.apart, with_bytes)

    def played_s(self) -> float:
        """Time of an iteration of the slowest job."""
        return slowest_s(self.play(with_bytes=False))

    @property
    def compute_s(self) -> float:
        """Forward and backward pass of one worker; the mean if a trace has several, of a pipeline the slowest stage's."""
        workload = self.job.workload
        exchanges = [exchange for t in workload.errands if (exchange := workload.tensors[t].exchange) is not None]
        # A stage's replicas are neighbours and alike.
        ranks = range(0, self.job.workers, max(1, self.job.workers // MOST_STAGES))
        of_stage_ns = max((sum(each.compute_ns(worker(rank)) for each in exchanges) for rank in ranks), default=0)
        return float(workload.forward_ns.sum() + workload.backward_ns.sum(axis=1).mean() + of_stage_ns) / 1e9

    @property
    def has_uplinks(self) -> bool:
        """Whether there are links between switches."""
        topology = self.network.topology
        return self.network.racks > 1 if topology is None else len(topology.switches) > 1

    @property
    def latency_ns(self) -> float:
        """One way, of the slowest cable."""
        topology = self.network.topology
        return self.network.latency_ns if topology is None else max(cable.delay_ns for cable in topology.cables)

    @property
    def is_proportional(self) -> bool:
        """Whether its time is that of its computing and of its links alone, so that only their ratio counts."""
        network = self.network
        fixed = self.latency_ns or network.overhead_ns or network.turnaround_ns or self.job.host_ps_per_byte
        return not fixed and not self.has_cores and not self.has_recirculation

    @property
    def has_window(self) -> bool:
        """Whether slots may limit it."""
        return bool(self.network.slots) and self.job.mechanism.needs_fabric

    def computing(self, factor: float) -> Setup:
        """Computing takes `factor` times as long."""

        def times(ns: NDArray[np.int64]) -> NDArray[np.int64]:
            rounded: NDArray[np.int64] = np.rint(ns * factor).astype(np.int64)
            return rounded

        workload = self.job.workload
        tensors = tuple(
            tensor if tensor.exchange is None else replace(tensor, exchange=tensor.exchange.slowed(factor))
            for tensor in workload.tensors
        )
        slower = replace(
            workload,
            tensors=tensors,
            forward_ns=times(workload.forward_ns),
            backward_ns=times(workload.backward_ns),
        )
        return replace(self, job=replace(self.job, workload=slower))

    def rates(self, hosts: float, uplinks: float) -> Setup:
        """Hosts' links and links between switches have so many times their rates."""
        network = self.network
        if network.topology is None:
            return self._network(
                bandwidth_bits_s=max(1.0, network.bandwidth_bits_s * hosts),
                oversubscription=network.oversubscription * hosts / uplinks,
            )
        switches = set(network.topology.switches)

        def other(cable: Cable) -> Cable:
            rate = network.bandwidth_bits_s if cable.rate_bits_s is None else cable.rate_bits_s
            return replace(cable, rate_bits_s=max(1.0, rate * (uplinks if cable.lower in switches else hosts)))

        return self._cables(other)

    def host_link(self, factor: float) -> Setup:
        """The links between a host's GPUs have so many times their rate."""
        return replace(self, job=replace(self.job, host_ps_per_byte=self.job.host_ps_per_byte / factor))

    @property
    def has_cores(self) -> bool:
        """Whether hosts' cores may limit it."""
        return math.isfinite(self.network.worker_bits_s + self.network.server_bits_s)

    def cores(self, factor: float) -> Setup:
        """Hosts' cores let so many times as much through."""
        network = self.network
        return self._network(worker_bits_s=network.worker_bits_s * factor, server_bits_s=network.server_bits_s * factor)

    @property
    def has_recirculation(self) -> bool:
        """Whether sums pass a port of the switch."""
        return math.isfinite(self.network.sums_bits_s)

    def recirculation(self, factor: float) -> Setup:
        """That port has so many times its rate."""
        return self._network(sums_bits_s=self.network.sums_bits_s * factor)

    def latency(self, factor: float) -> Setup:
        """Every cable has so many times its latency."""
        if self.network.topology is None:
            return self._network(latency_ns=round(self.network.latency_ns * factor))
        return self._cables(lambda cable: replace(cable, delay_ns=cable.delay_ns * factor))

    def slots(self, count: int) -> Setup:
        return self._network(slots=count)

    def host_costs(self, message_ns: int, turnaround_ns: int = 0) -> Setup:
        """A message occupies its host's link longer, and a slot is used again later."""
        network = self.network
        return self._network(
            overhead_ns=network.overhead_ns + message_ns, turnaround_ns=network.turnaround_ns + turnaround_ns
        )

    def varied(self, jitter: float, seed: int) -> Setup:
        """Each worker's steps vary in addition to what they vary anyway."""
        own = self.job.variation
        variation = Variation(float(np.hypot(own.jitter, jitter)), own.stragglers, seed)
        return replace(self, job=replace(self.job, variation=variation))

    def _network(self, **changed: float) -> Setup:
        return replace(self, network=replace(self.network, **changed))  # type: ignore[arg-type]

    def _cables(self, other: Callable[[Cable], Cable]) -> Setup:
        topology = self.network.topology
        assert topology is not None, "has none of its own"
        cables = tuple(map(other, topology.cables))
        changed = Topology(topology.workers, topology.servers, topology.switches, cables)
        return replace(self, network=replace(self.network, topology=changed))
