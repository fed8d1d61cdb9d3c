"""Simulate one iteration as described by a command line or a call of netfold.predict.

`options` are those of simulation/commands/options.py by name, with the command line's values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hostlib.errors import UnknownNameError
from hostlib.protocol.framing import FRAMINGS, LEAST_MTU, MOST_MTU, MTU, mtu_for
from hostlib.schedules.contract import Collective, find_collective
from hostlib.system.host_costs import read_costs
from hostlib.text import units
from hostlib.topology.topology import TopologyError
from hostlib.topology.topology_table import read_table
from hostlib.traces.trace import Trace
from simulation.errors import NetworkError, SimulationError
from simulation.experiments.cost import require_playable
from simulation.experiments.scenario import SEMANTICS, Scenario, Semantics
from simulation.experiments.tables import ExperimentFile
from simulation.models import workload_source
from simulation.models.compute import Compute
from simulation.models.host_links import DEFAULT_HOST_LINK, find_host_link
from simulation.models.host_rates import HostRates
from simulation.models.workload_source import WorkloadSource
from simulation.simulator.network import Network
from simulation.simulator.play import Order, Played
from simulation.simulator.workload import Variation

SLOT_BYTES = 1024  # a packet of 256 elements of 4 bytes, as docs/protocol.md has it


@dataclass(frozen=True, slots=True)
class SimulatedIteration:
    """The simulator's results for an iteration.

    Attributes:
        iteration_s: time in seconds; of the slowest job if there are several.
        bytes_per_link: lower end of the cable (a host or a switch) -> bytes that it sent and received over it, in all
            iterations of all jobs.
        events: number of simulated events.
        wall_s: seconds that the simulation took.
        iterations: number of simulated iterations.
        workers_per_played: number of workers that each simulated worker represents.
        jobs_iteration_s: of each job, if there are several.
    """

    iteration_s: float
    bytes_per_link: dict[str, dict[str, int]]
    events: int
    wall_s: float
    iterations: int = 1
    workers_per_played: int = 1
    jobs_iteration_s: tuple[float, ...] = ()

    @classmethod
    def of(cls, played: Played, iterations: int) -> SimulatedIteration:
        each = tuple(outcome.iteration_s for outcome in played.outcomes)
        carried = {name: {"sent": sent, "received": received} for name, (sent, received) in played.link_bytes.items()}
        several = each if len(each) > 1 else ()
        return cls(max(each), carried, played.events, played.wall_s, iterations, played.stood_for, several)

    def as_json(self) -> dict[str, Any]:
        """The JSON of `simulation run --json`, without uninformative fields."""
        result: dict[str, Any] = {
            "iteration_s": self.iteration_s,
            "bytes_per_link": self.bytes_per_link,
            "events": self.events,
            "wall_s": self.wall_s,
        }
        if self.iterations > 1:
            result["iterations"] = self.iterations
        if self.workers_per_played > 1:
            result["workers_per_played"] = self.workers_per_played
        if self.jobs_iteration_s:
            result["jobs_iteration_s"] = list(self.jobs_iteration_s)
        return result


def simulate(scenario: Scenario) -> SimulatedIteration:
    """Run the simulation.

    Raises:
        SimulationError, HostlibError: it is impossible or would take too long; see Scenario.play and require_playable.
    """
    require_playable(scenario)
    return SimulatedIteration.of(scenario.play(), scenario.rounds)


def network_of(bandwidth: str, options: dict[str, Any]) -> Network:
    """Make the network that options describe; these options are removed.

    Raises:
        QuantityError: a value is not a bandwidth, time or size.
        NetworkError: the network is impossible.
        TopologyError: see declaration_of.
    """
    aggregate, forward = options.pop("store_and_aggregate"), options.pop("store_and_forward")
    latency_ns = units.time_ns(options.pop("latency"), bare="s")
    racks, oversubscription = options.pop("racks"), options.pop("oversubscription")
    path, spines = options.pop("topology", None), options.pop("spines", 1)
    declaration = None if path is None else declaration_of(Path(path))
    if spines != 1 and declaration is None:
        if racks == 1:
            raise NetworkError("--spines is of racks' uplinks: it needs --racks of 2 or more")
        declaration = {
            "kind": "leaf-spine",
            "leaves": racks,
            "oversubscription": float(oversubscription),
            "spines": spines,
            "delay": f"{round(latency_ns / 2)}ns",
        }
    return Network(
        units.bandwidth(bandwidth),
        latency_ns,
        units.time_ns(options.pop("overhead"), bare="s"),
        racks,
        oversubscription,
        store_and_forward=forward,
        store_and_aggregate=aggregate or forward,
        declaration=declaration,
    )


def declaration_of(path: Path) -> dict[str, Any]:
    """The table [topology] of a file that is only it, or of an experiment's.

    Raises:
        TopologyError: the file cannot be read, or has no such table.
    """
    table = read_table(path, ExperimentFile.model_fields)
    if not table:
        raise TopologyError(f"{path} has no table [topology]")
    return table


def semantics_of(network: Network, options: dict[str, Any]) -> Semantics:
    """What is played of that which hosts and switches do; its options, except for --message, are removed.

    Unless they are named, they are the papers' where switches have whole sums, as only the papers' switches do.

    Raises:
        UnknownNameError: there are no such semantics.
        QuantityError: a value is not a size.
        SimulationError: options contradict each other.
    """
    name = options.pop("semantics") or ("papers" if network.store_and_aggregate else "runtime")
    if name not in SEMANTICS:
        raise UnknownNameError("semantics", name, SEMANTICS)
    made = SEMANTICS[name]
    slots, bucket, headers = options.pop("slots"), options.pop("bucket"), options.pop("headers")
    framing, elements = options.pop("framing", "physical"), options.pop("elements", None)
    mtu, recirculation = options.pop("mtu", None), options.pop("recirculation", None)
    declared = (network.declaration or {}).get("elements")
    if not isinstance(declared, int):
        declared = None  # whatever else it is, declaring the network refuses it
    if elements is None:
        elements = made.elements if declared is None else declared
    if mtu is None:
        mtu = MTU if declared is None else mtu_for(declared)
    if framing not in FRAMINGS:
        raise UnknownNameError("framing", framing, FRAMINGS)
    if not LEAST_MTU <= mtu <= MOST_MTU:
        raise SimulationError(f"--mtu must be from {LEAST_MTU} to {MOST_MTU} bytes, not {mtu}")
    made = replace(made, framing=replace(FRAMINGS[framing], mtu=mtu), elements=elements)
    if recirculation is not None:
        made = replace(made, recirculation_bits_s=units.bandwidth(recirculation))
    if slots is not None:
        made = replace(made, slots=number_of_slots(slots))
    if headers is not None:
        made = replace(made, headers=headers)
    if bucket is None:
        # Messages are parts of whole gradients.
        return made if options["message"] is None else replace(made, bucket_bytes=0)
    bucket_bytes = units.size(bucket)
    if bucket_bytes and options["message"] is not None and units.size(options["message"]):
        raise SimulationError("--bucket and --message exclude each other: one joins gradients, the other cuts them")
    return replace(made, bucket_bytes=bucket_bytes)


def number_of_slots(slots: int | str) -> int:
    """How many slots `--slots` asks for. In one more version a size may be given instead.

    Raises:
        QuantityError: neither a number nor a size.
    """
    text = str(slots)
    return int(text) if text.isdecimal() and text.isascii() else -(-units.size(text, "slots") // SLOT_BYTES)


def _seconds(text: str | None) -> float | None:
    return None if text is None else units.time_ns(text, bare="s") / 1e9


def compute_of(options: dict[str, Any]) -> Compute:
    """What options say of computing.

    Raises:
        SimulationError: a value is impossible, or values exclude each other.
    """
    return Compute(
        options["batch"],
        _seconds(options["forward"]),
        _seconds(options["backward"]),
        options["tflops"],
        options.get("gpu"),
    )


def trace_of(name: str, options: dict[str, Any]) -> Trace:
    """A model's trace. Raises what workload_source.model raises."""
    return workload_source.model(name, compute_of(options), options["pixels"]).trace


def scenario_of(
    subject: WorkloadSource,
    mechanism: str,
    workers: int,
    network: Network,
    semantics: Semantics,
    options: dict[str, Any],
    jobs: int = 1,
    apart: bool = False,
) -> Scenario:
    """A cell that options describe.

    Args:
        workers: GPUs, of which a host has `gpus_per_host` of the options.
        network, semantics: of network_of and semantics_of.
        options: by name, and `host_rates` of read_host_rates.

    Raises:
        SimulationError: an option is impossible.
    """
    stragglers = {}
    for text in options["stragglers"]:
        rank, _, factor = text.partition("=")
        try:
            number, times = int(rank), float(factor)
        except ValueError:
            raise SimulationError(f"--straggler takes RANK=FACTOR, not {text!r}") from None
        if number in stragglers:
            raise SimulationError(f"--straggler {text}: rank {number} is given twice")
        stragglers[number] = times
    gpus, link = options.get("gpus_per_host", 1), find_host_link(options.get("host_link", DEFAULT_HOST_LINK))
    return Scenario(
        subject,
        mechanism,
        hosts_of(workers, gpus),
        network,
        semantics,
        jobs,
        apart,
        options["iterations"],
        options["barrier"] == "global",
        None if options["pipelined"] is None else options["pipelined"] == "yes",
        Order(options["order"]),
        Variation(options["jitter"], _slowest_of_hosts(stragglers, workers, gpus), options["seed"]),
        gpus_per_host=gpus,
        host_rates=options.get("host_rates"),
        host_link_gb_s=link.gb_s,
    )


def read_host_rates(options: dict[str, Any]) -> HostRates | None:
    """What options say of hosts' cores, which scenario_of takes as `host_rates`; None: nothing.

    Raises:
        HostlibError: the file cannot be read.
        SimulationError: an impossible number of cores, or one without a file.
    """
    path, cores = options.get("host_costs"), options.get("cores")
    if path is None:
        if cores is not None:
            raise SimulationError("--cores is of --host-costs: add that")
        return None
    costs = read_costs(Path(path))
    return HostRates(costs, costs.cores if cores is None else cores)


def hosts_of(workers: int, gpus_per_host: int) -> int:
    """How many hosts so many GPUs are on.

    Raises:
        SimulationError: no whole number.
    """
    if gpus_per_host < 1 or (gpus_per_host > 1 and workers % gpus_per_host):
        raise SimulationError(f"--gpus-per-host must divide --workers, and {gpus_per_host} does not divide {workers}")
    return workers // gpus_per_host


def _slowest_of_hosts(stragglers: dict[int, float], workers: int, gpus: int) -> dict[int, float]:
    """Hosts' stragglers from those of their GPUs: a host's sums wait for its slowest GPU.

    Raises:
        SimulationError: there is no such GPU.
    """
    if gpus == 1:
        return stragglers
    if beyond := [rank for rank in stragglers if rank >= workers]:
        raise SimulationError(f"--straggler {beyond[0]}: there are only {workers} workers")
    hosts = {rank // gpus for rank in stragglers}
    return {host: max(stragglers.get(host * gpus + gpu, 1.0) for gpu in range(gpus)) for host in hosts}


def subject_of(
    model: str | None, trace_file: Path | None, size: str | None, options: dict[str, Any]
) -> tuple[WorkloadSource, str]:
    """The subject of the simulation and its name: a model, a trace, or a bare collective if neither is given.

    Raises:
        UnknownNameError: there is no such collective.
        SimulationError: several are given, or one is impossible.
    """
    collective = find_collective(options.pop("collective", Collective.ALL_REDUCE.value))
    if sum(each is not None for each in (model, trace_file, size)) > 1:
        raise SimulationError("--model, --trace and --size exclude each other")
    message = units.size(options["message"] or "0")
    if collective is not Collective.ALL_REDUCE and (model or trace_file) is not None:
        raise SimulationError(f"--collective {collective} is of a bare tensor: --size is legal beside it")
    if model is not None:
        return workload_source.model(model, compute_of(options), options["pixels"], message), model
    if trace_file is not None:
        return workload_source.recorded(trace_file, compute_of(options), message), str(trace_file)
    bytes_ = units.size("16MiB" if size is None else size)
    if bytes_ < 1:
        raise SimulationError(f"--size must be at least 1 byte, not {size}")
    return workload_source.bare(bytes_, message, collective), f"{collective.words} of {size or '16MiB'}"
