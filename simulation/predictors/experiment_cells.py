"""Cells of experiments as predictors take them: a workload, a cluster and a plan."""

from __future__ import annotations

from dataclasses import replace

from hostlib.protocol.framing import EMULATED, PHYSICAL
from hostlib.protocol.header import ELEMENTS
from simulation.experiments.experiment_file import Cell, Experiment
from simulation.experiments.scenario import RUNTIME
from simulation.models.workload_source import WorkloadSource
from simulation.plans.cluster import Cluster
from simulation.plans.parallel_plan import ParallelPlan
from simulation.simulator.loss import RETRANSMISSION_TIMEOUT_NS
from simulation.simulator.network import Network


def parts_of(experiment: Experiment, cell: Cell) -> tuple[WorkloadSource, Cluster, ParallelPlan] | None:
    """A cell's workload, cluster and plan; None for a library's own mechanism and for real training.

    Raises:
        TopologyError: the topology is impossible with the cell's hosts.
        HostlibError, SimulationError: there is no such model or trace, or too little is known of it.
    """
    if experiment.training is not None:
        return None
    plan = replace(
        ParallelPlan.parse(cell.mechanism, cell.workers),
        bucket_bytes=experiment.replay.bucket_bytes,
        slots=cell.slots,
    )
    if experiment.mechanism(cell).build is None and experiment.workload(cell).summed:
        return None
    return experiment.subject(cell), cluster_of(experiment, cell), plan


def cluster_of(experiment: Experiment, cell: Cell) -> Cluster:
    """A cell's workers and network.

    Raises:
        TopologyError: the topology is impossible with the cell's hosts.
    """
    declared = experiment.declared(cell)
    elements, mtu = declared.elements or ELEMENTS, declared.mtu
    semantics = replace(RUNTIME, elements=elements, framing=replace(PHYSICAL, mtu=mtu))
    if experiment.emulated:
        semantics = replace(
            semantics,
            framing=replace(EMULATED, mtu=mtu),
            send_buffer_bytes=round(declared.tcp_window_bytes * experiment.replay.shrink),
            # Linux's clock is not slowed down with the rest.
            timeout_ns=round(RETRANSMISSION_TIMEOUT_NS / max(1.0, experiment.replay.dilation)),
        )
    return Cluster(
        cell.workers,
        Network(experiment.rate_bits_s(cell), topology=declared),
        semantics=semantics,
        jobs=cell.jobs,
        apart=True,
        shrink=experiment.replay.shrink,
    )
