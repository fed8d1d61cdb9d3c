"""What a simulation costs, estimated before it is played, and the refusal of those that would take too long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import worker
from simulation.errors import SimulationError
from simulation.experiments.scenario import BUCKET_BYTES, Scenario
from simulation.simulator.compile import reduced
from simulation.simulator.play import MAX_NODES, MAX_TENSORS, REDUCE_ABOVE

# Seconds on one core, measured with ResNet-50 at 1,024 workers.
COMPILING_S, PLAYING_S, BYTES_PER_COMPILED = 2.5e-6, 1.5e-7, 400
LONGEST_S, MOST_BYTES = 3600.0, 32 * 10**9
SAMPLE = 256  # workers; larger schedules are extrapolated from this many and twice as many


@dataclass(frozen=True, slots=True)
class Cost:
    """An estimate.

    Attributes:
        compiled: operations of schedules, which are made and compiled once.
        played: operations of all tensors, in all iterations of all jobs.
    """

    compiled: float
    played: float

    @property
    def seconds(self) -> float:
        return self.compiled * COMPILING_S + self.played * PLAYING_S

    @property
    def memory_bytes(self) -> float:
        return self.compiled * BYTES_PER_COMPILED


def cost_of(scenario: Scenario) -> Cost:
    """Estimate the operations that a scenario takes: those of its schedule, times its tensors."""
    mechanism, workers = scenario.choice.mechanism, scenario.workers
    if mechanism.build is None or workers < 2:
        return Cost(0, 0)
    per_worker, symmetric = _operations(mechanism.name, mechanism.collective, workers)
    tensors, largest = _tensors(scenario)
    whole = 2 * per_worker * workers  # switches and servers have about as many as workers
    network = scenario.network
    plain = network.topology is None and network.declaration is None and network.racks == 1 and not network.host_links
    alone = plain and scenario.jobs == 1 and scenario.variation.is_none
    compiled = per_worker if symmetric and alone and whole * tensors > 2 * REDUCE_ABOVE else whole
    parts = 1.0
    if scenario.semantics.turns and not mechanism.needs_fabric:
        pieces = mechanism.schedule(min(workers, 2 * SAMPLE), size=largest).pieces
        parts = max(1.0, scenario.turns / max(1, pieces, per_worker / 2))
    played = compiled * tensors * parts * scenario.rounds * scenario.jobs
    return Cost(compiled, played)


def require_playable(scenario: Scenario) -> Cost:
    """Check before anything is played that it would end.

    Raises:
        SimulationError: there are too many messages, or it would take hours or all memory; with the estimate.
    """
    scenario.require_counts()
    what = f"{scenario.mechanism} with {scenario.workers:,} workers"
    if scenario.workers * (scenario.jobs if scenario.apart else 1) >= MAX_NODES:
        raise SimulationError(f"{what}: at most {MAX_NODES:,} hosts and switches can be played")
    tensors, _ = _tensors(scenario)
    cost = cost_of(scenario)
    if tensors * scenario.jobs > MAX_TENSORS:
        raise SimulationError(
            f"{what}: {tensors * scenario.jobs:,} messages are more than {MAX_TENSORS:,}; a larger --message or --bucket "
            "makes fewer"
        )
    if cost.seconds > LONGEST_S or cost.memory_bytes > MOST_BYTES:
        raise SimulationError(
            f"{what}: about {_rounded(cost.played)} operations would take about {_duration(cost.seconds)} and "
            f"{_rounded(cost.memory_bytes / 1e9)} GB; fewer --workers, or a larger --message or --bucket, takes less"
        )
    return cost


def _tensors(scenario: Scenario) -> tuple[int, int]:
    """How many tensors are summed, and bytes of the largest, about."""
    sizes = [parameter.bytes for parameter in scenario.subject.trace.parameters]
    message, bucket = scenario.subject.message_bytes, scenario.semantics.bucket_bytes
    largest = max(sizes, default=0)
    if bucket:
        return max(1, min(len(sizes), sum(sizes) // bucket + 1)), min(sum(sizes), max(largest, BUCKET_BYTES))
    if message:
        return sum(-(-size // max(4, message)) for size in sizes), min(largest, message)
    return max(1, len(sizes)), largest


@cache
def _operations(name: str, collective: Collective, workers: int) -> tuple[float, bool]:
    """Operations of one worker of a mechanism, and whether one worker may represent all."""
    mechanism = find(name).of(collective)
    # Powers of two have schedules of their own.
    small = SAMPLE if workers & (workers - 1) == 0 else SAMPLE + SAMPLE // 2
    try:
        if workers <= 2 * small:
            return _count(mechanism, workers), _symmetric(mechanism, workers)
        fewer, more = _count(mechanism, small), _count(mechanism, 2 * small)
        growth = math.log2(max(more, 1) / max(fewer, 1))
        return max(more, 1) * (workers / (2 * small)) ** growth, _symmetric(mechanism, small)
    except HostlibError:  # It says so when it is played.
        return 1.0, False


def _count(mechanism: Mechanism, workers: int) -> float:
    return float(len(mechanism.schedule(workers).nodes[worker(0)]))


def _symmetric(mechanism: Mechanism, workers: int) -> bool:
    few = min(workers, 8 if workers & (workers - 1) == 0 else 12)
    return reduced(mechanism.schedule(few)) is not None


def _rounded(value: float) -> str:
    """Two digits: 3.4e+07, or 34."""
    return f"{value:.2g}" if value >= 1e4 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    for unit, length in (("years", 31557600), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{_rounded(seconds / length)} {unit}"
    return f"{seconds:.0f} s"
