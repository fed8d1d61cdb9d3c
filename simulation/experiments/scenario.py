"""Scenarios: one cell as the simulator plays it.

Every command, netfold.predict and the predictor of experiments make a Scenario, which alone makes networks and jobs for
the simulator. So they give the same number for the same cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from hostlib.mechanisms.mechanism import find
from hostlib.protocol.framing import LEGAL_ELEMENTS, PHYSICAL, Framing, ip_bytes
from hostlib.protocol.header import ELEMENTS
from hostlib.protocol.slots import SLOTS_PER_POOL, slots_of_stream
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse, is_host, worker
from hostlib.strategies.strategy import DEFAULT_STRATEGY, Choice, choose
from hostlib.topology.builtin.leaf_spine import leaf_spine
from hostlib.topology.topology import Topology
from simulation.errors import NetworkError, SimulationError
from simulation.models.host_rates import HostRates
from simulation.models.workload_source import WorkloadSource
from simulation.simulator.loss import RETRANSMISSION_TIMEOUT_NS, rounds, tcp_window
from simulation.simulator.network import Network, declared_topology, star_of
from simulation.simulator.play import Job, Order, Played, operations, play, slots_of
from simulation.simulator.workload import Variation, Workload, in_parts, of_plan

MOST_WORKERS, MOST_JOBS = 1_000_000, 10_000
BUCKET_BYTES = 25 * 2**20  # of DDP: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb
# Turns in which streams share a link during one tensor, at most: more is more accurate, but slower. Fewer where many
# workers' messages take turns.
TURNS, WORKERS_OF_ALL_TURNS, FEWEST_TURNS = 1024, 16, 16
PARTS = 64  # in which the fabric's tensors share links with others, at most
LINUX_SEND_BUFFER_BYTES = 4 * 2**20  # the largest of tcp_wmem by default: tcp(7)
# Hosts never compute in step to the bit. In some mechanisms (halving-doubling of five) hosts that are a little late hold
# up others, so an iteration's time is the median of some plays with a little jitter, where those take no time.
JITTER, PLAYS, PLAYED_ONCE = 0.005, 5, 2_000_000
SOME_EVENTS = 500_000  # of one play: from here on, it is the only one


@dataclass(frozen=True, slots=True)
class Semantics:
    """What is played of that which hosts and switches do. The defaults are what hostlib and the switches do.

    Attributes:
        bucket_bytes: gradients are summed together up to this size, as in DDP; 0 for each by itself.
        slots: of a job on a switch; 0 for any number.
        headers: frames have headers, and acknowledgements share links with values.
        framing: which bytes links count of a frame with headers, and how many of them it may have.
        elements: values in a frame of the slot protocol, of 4 bytes each.
        frames: switches forward a frame once they have all of it; otherwise a message's first bit at once.
        turns: streams share a link in turns, as TCP's do; otherwise whole messages follow each other.
        send_buffer_bytes: of a TCP connection: bytes that its receiver has not acknowledged, at most; 0 for any number.
        timeout_ns: the least retransmission timeout of TCP.
        recirculation_bits_s: of a switch's recirculation port, through which each of all jobs' sums passes once.
        jitter: of computing times, see simulation.simulator.workload.Variation.
        channels: a host has only so many all-reduces in progress as the mechanism's; otherwise all that it can.
        servers_first: with servers, an iteration begins with their distribution and ends with the sums there, and a
            layer's forward pass waits for its own parameters only; servers are in the racks. Otherwise it begins with
            the forward pass and ends when every worker has every sum, as DDP's, and servers are on the spine.
    """

    bucket_bytes: int = BUCKET_BYTES
    slots: int = SLOTS_PER_POOL
    headers: bool = True
    framing: Framing = PHYSICAL
    elements: int = ELEMENTS
    frames: bool = True
    turns: bool = True
    send_buffer_bytes: int = LINUX_SEND_BUFFER_BYTES
    timeout_ns: int = RETRANSMISSION_TIMEOUT_NS
    recirculation_bits_s: float = float("inf")
    jitter: float = JITTER
    channels: bool = True
    servers_first: bool = False

    def __post_init__(self) -> None:
        if self.elements not in LEGAL_ELEMENTS:
            legal = ", ".join(map(str, LEGAL_ELEMENTS))
            raise SimulationError(f"--elements must be one of {legal}, not {self.elements}")
        if self.headers and (needed := ip_bytes(self.elements)) > self.framing.mtu:
            raise SimulationError(
                f"--elements {self.elements} is above --mtu {self.framing.mtu}: such packets have {needed} bytes"
            )


RUNTIME = Semantics()
# "How to Train your DNN": whole tensors, without headers, in fabrics without limits.
PAPERS = Semantics(
    bucket_bytes=0,
    slots=0,
    headers=False,
    frames=False,
    turns=False,
    send_buffer_bytes=0,
    jitter=0.0,
    channels=False,
    servers_first=True,
)
SEMANTICS = {"runtime": RUNTIME, "papers": PAPERS}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cell: a model, a mechanism, a network and how they are played.

    Attributes:
        mechanism: MECHANISM or STRATEGY/MECHANISM.
        network: with racks, or a declaration or topology of its own; its slots, turns and frames are replaced by the semantics'.
        jobs: identical ones at the same time.
        apart: each on its own hosts.
        iterations: None for one, or three without a barrier.
        pipelined: see Job; None as the semantics have it.
        shrink: tensors are so many times smaller and links so many times slower.
        gpus_per_host: each of the workers is a host with so many GPUs, which sum among themselves first.
        host_rates: what hosts' cores let through; None: as much as their links.
        host_link_gb_s: of each GPU to the others of its host, in each direction, 10^9 bytes per second.
        roughness: streams share links in so many times fewer turns.
    """

    subject: WorkloadSource
    mechanism: str
    workers: int
    network: Network
    semantics: Semantics = RUNTIME
    jobs: int = 1
    apart: bool = False
    iterations: int | None = None
    barrier: bool = True
    pipelined: bool | None = None
    order: Order = Order.ROUND_ROBIN
    variation: Variation = field(default_factory=Variation)
    shrink: float = 1.0
    gpus_per_host: int = 1
    host_link_gb_s: float = float("inf")
    host_rates: HostRates | None = None
    roughness: int = 1

    @property
    def choice(self) -> Choice:
        """Its strategy, and its mechanism for the subject's collective.

        Raises:
            HostlibError: there are none of these names, or the mechanism does not do the collective.
        """
        choice = choose(self.mechanism)
        return replace(choice, mechanism=choice.mechanism.of(self.subject.collective))

    @property
    def rounds(self) -> int:
        """Iterations that are played."""
        if self.iterations is not None:
            return self.iterations
        return 1 if self.barrier else 3

    @property
    def turns(self) -> int:
        """In how many turns streams share a link during the largest tensor, at most."""
        turns = min(TURNS, TURNS * WORKERS_OF_ALL_TURNS // (self.workers * self.jobs))
        return max(FEWEST_TURNS, turns // self.roughness)

    def require_counts(self) -> None:
        """Check its numbers of workers and jobs. Raises SimulationError: they are illegal."""
        if not 1 <= self.workers <= MOST_WORKERS:
            limit = "at least 1" if self.workers < 1 else f"at most {MOST_WORKERS}"
            raise SimulationError(f"--workers must be {limit}, not {self.workers}")
        if not 1 <= self.jobs <= MOST_JOBS:
            limit = "at least 1" if self.jobs < 1 else f"at most {MOST_JOBS}"
            raise SimulationError(f"--jobs must be {limit}, not {self.jobs}")

    def _require_gpus(self) -> None:
        """Check that what is played of several GPUs per host applies.

        Raises:
            SimulationError: it does not.
        """
        if self.gpus_per_host == 1:
            return
        if self.choice.strategy.plain != DEFAULT_STRATEGY:
            raise SimulationError(
                f"--gpus-per-host: {self.mechanism} is a training strategy; a mechanism alone is legal"
            )
        if self.semantics.servers_first or not self.barrier:
            raise SimulationError("--gpus-per-host needs --semantics runtime and --barrier global")

    def workload(self) -> Workload:
        """What each worker computes and sends in an iteration; tensors shrunk.

        Raises:
            SimulationError, HostlibError: see WorkloadSource.plan.
        """
        factor = self.subject.collective.tensor_bytes(1, self.workers) / self.shrink
        plan = self.subject.plan(self.choice, self.workers).scaled(factor)
        if self.semantics.headers:
            # Links carry the mechanism's frames; messages with other frames are scaled up by their lower efficiency.
            plan = plan.with_exchanges_scaled(self.efficiency / self.semantics.framing.tcp_efficiency())
        return of_plan(plan, self.subject.message_bytes, round(self.semantics.bucket_bytes / self.shrink))

    @property
    def efficiency(self) -> float:
        """Share of values in a link's traffic in both directions, for the mechanism's frames."""
        framing = self.semantics.framing
        if self.choice.mechanism.needs_fabric:
            return framing.slot_efficiency(self.semantics.elements)
        return framing.tcp_efficiency()

    def topology(self) -> Topology:
        """Its network's hosts, switches and cables.

        Raises:
            NetworkError, TopologyError: it is impossible.
        """
        network = self.network
        if network.topology is not None:
            return network.topology
        workers, servers = (each * (self.jobs if self.apart else 1) for each in (self.workers, self.choice.hosts))
        if network.declaration is not None:
            return declared_topology(network, workers, servers)
        if network.racks > workers:
            raise NetworkError(f"racks must be in 1..{workers}, the number of workers' hosts, not {network.racks}")
        rate_bits_s, delay_ns = network.bandwidth_bits_s, network.latency_ns / 2
        if network.racks == 1:
            return star_of(network, workers, servers)
        return leaf_spine(workers, network.racks, servers, rate_bits_s, network.oversubscription, delay_ns)

    def made(self) -> tuple[Network, Job]:
        """The simulator's network, and one of the jobs.

        Raises:
            SimulationError, HostlibError: they are impossible.
        """
        self.require_counts()
        self._require_gpus()
        mechanism, workload, semantics = self.choice.mechanism, self.workload(), self.semantics
        framing = semantics.framing
        slot_bytes, slot_frame = framing.slot_frame(semantics.elements)
        frame = slot_frame if mechanism.needs_fabric else framing.tcp_segment()[1]
        if self.jobs > 1 and semantics.frames and mechanism.needs_fabric and mechanism.channels == 0:
            workload = in_parts(workload, PARTS, slot_bytes)
        if semantics.turns and semantics.slots and workload.gathers and mechanism.fabric_use is FabricUse.MULTICAST:
            # Streams of chunks share receivers' links with messages between hosts: what a source has slots for waits behind
            # what is on its way to a receiver.
            window_bytes = slots_of_stream(self.workers, semantics.slots) * slot_bytes
            workload = in_parts(workload, PARTS, max(self.workers * window_bytes, slot_bytes), Collective.ALL_GATHER)
        job = Job(
            workload,
            mechanism,
            self.workers,
            iterations=self.rounds,
            barrier=self.barrier,
            pipelined=self.pipelined if semantics.servers_first or self.pipelined is not None else False,
            bare=self.subject.bare or not semantics.servers_first,
            order=self.order,
            variation=self.variation,
            channels=mechanism.channels if semantics.channels else 0,
            # A ring's reduce-scatter of g GPUs: each sends (g - 1) / g of the tensor. So does its all-gather.
            host_ps_per_byte=(1 - 1 / self.gpus_per_host) * 1e3 / self.host_link_gb_s * self.shrink,
        )
        turn_bytes = 0
        if semantics.turns:
            largest = max((tensor.bytes for tensor in workload.tensors), default=0)
            turn_bytes = max(framing.tcp_segment()[0], largest // self.turns)
        declared = self.network.declaration is not None or not semantics.servers_first
        topology = self.topology() if declared else self.network.topology
        window_bytes = 0
        if semantics.turns and semantics.send_buffer_bytes:
            window_bytes = round(semantics.send_buffer_bytes / self.shrink)
            if topology is not None:
                window_bytes = round(min(window_bytes, tcp_window(topology, framing.tcp_segment()[0])))
        efficiency = self.efficiency if semantics.headers else 1.0
        if topology is not None and mechanism.needs_fabric:
            efficiency /= self._rounds(topology)
        network = replace(
            self.network,
            slots=semantics.slots,
            slot_bytes=slot_bytes,
            turn_bytes=turn_bytes,
            window_bytes=window_bytes,
            timeout_ns=semantics.timeout_ns,
            topology=topology,
            efficiency=efficiency,
            frame_bytes=frame if semantics.frames else 0,
        )
        if self.workers == 1 and not semantics.servers_first:
            # One worker has all sums already. A ring of one sends nothing.
            return network, replace(job, mechanism=find("ring"), workload=alone(workload), channels=0)
        if self.host_rates is not None and workload.summed:
            largest = max(tensor.bytes for tensor in workload.summed)
            rates = self.host_rates.of(mechanism, self.workers, largest, slot_bytes)
            network = replace(network, worker_bits_s=rates[0] / self.shrink, server_bits_s=rates[1] / self.shrink)
        sums = mechanism.fabric_use not in (None, FabricUse.MULTICAST)
        if sums and math.isfinite(semantics.recirculation_bits_s):
            share = semantics.recirculation_bits_s / (self.jobs if self.apart else 1)
            network = replace(network, sums_bits_s=share * self.efficiency / self.shrink)
        slots_of(job, network)
        return network, job

    def _rounds(self, topology: Topology) -> float:
        """How often what a mechanism has in the fabric is sent."""
        mechanism = self.choice.mechanism
        if mechanism.fabric_use is FabricUse.MULTICAST:
            # A chunk that one receiver misses is repeated for it alone.
            return 1 + max((cable.loss for cable in topology.cables), default=0.0)
        hosts = {*map(worker, range(self.workers)), *(f"server{n}" for n in range(self.choice.hosts))}
        return rounds(cable for cable in topology.cables if cable.lower in hosts or not is_host(cable.lower))

    def play(self) -> Played:
        """Simulate it.

        Raises:
            SimulationError, HostlibError: it is impossible; see simulation.simulator.play.play.
        """
        return median(self.plays())

    def plays(self) -> list[Played]:
        """The plays of which an iteration's time is the median. Raises what play raises."""
        network, job = self.made()
        jitter = self.semantics.jitter
        if not jitter or not job.variation.is_none or operations(job) * self.jobs * self.rounds > PLAYED_ONCE:
            return [play(network, [job] * self.jobs, self.apart)]

        def jobs(number: int) -> list[Job]:
            seeds = range(1 + number * self.jobs, 1 + (number + 1) * self.jobs)
            return [replace(job, variation=Variation(jitter, seed=seed)) for seed in seeds]

        first = play(network, jobs(0), self.apart)
        if first.events > SOME_EVENTS:
            return [first]
        return [first, *(play(network, jobs(number), self.apart) for number in range(1, PLAYS))]


def alone(workload: Workload) -> Workload:
    """The same computing, without what strategies exchange: their gradients stay where they are."""
    dropped = {*workload.errands, *(t for t, _, _ in workload.gathers)}
    kept = [t for t in range(len(workload.tensors)) if t not in dropped]
    place = {t: number for number, t in enumerate(kept)}
    tensors = tuple(replace(workload.tensors[t], exchange=None, collective=None) for t in kept)
    released = tuple(tuple(place[t] for t in step) for step in workload.released)
    return replace(workload, tensors=tensors, released=released, errands=(), gathers=())


def median(plays: list[Played]) -> Played:
    """The one whose slowest job takes the median of times."""
    return sorted(plays, key=slowest_s)[len(plays) // 2]


def slowest_s(played: Played) -> float:
    """Time of an iteration of the slowest job."""
    return max(outcome.iteration_s for outcome in played.outcomes)
