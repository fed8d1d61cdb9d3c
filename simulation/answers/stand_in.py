"""Smaller networks that stand for a cell whose plays take long."""

from __future__ import annotations

import math
from dataclasses import replace

from simulation.answers.setup import Setup
from simulation.experiments.cost import cost_of, require_playable
from simulation.experiments.scenario import Scenario
from simulation.experiments.single_iteration import SimulatedIteration

PROBE_WORKERS, PROBE_JOBS = 48, 4
MOST_PLAYED = 4096  # workers; to make schedules of more takes minutes and gigabytes, even if one worker stands for all
FEWEST = 64  # workers of the smaller of the two networks from which a time is extrapolated
UNSURE = 0.03  # relative standard deviation of an extrapolated time


def smaller(scenario: Scenario) -> Setup:
    """The same network with fewer workers: what limits a mechanism, and by how much, hardly changes with their number.

    Raises:
        SimulationError, HostlibError: the scenario is impossible.
    """
    return Setup.of(with_fewer(scenario))


def with_fewer(scenario: Scenario) -> Scenario:
    """What `smaller` plays."""
    racks = scenario.network.racks
    unit = math.lcm(racks, scenario.choice.strategy.stages)
    fewer = min(scenario.workers, -(-PROBE_WORKERS // unit) * unit)
    return _with_workers(scenario, fewer, racks, min(scenario.jobs, PROBE_JOBS))


def roughly(scenario: Scenario, roughness: int) -> Scenario:
    """What takes less time to play, to be searched, or compared with its like.

    With a roughness of 2 nearly all times are within a percent, and with 4 within two. Pipelines are as they are: they
    have few large messages, on several links one after the other.
    """
    return replace(scenario, roughness=roughness if scenario.choice.strategy.stages == 1 else 1)


def takes_long(scenario: Scenario, longest_s: float, fewest: int = FEWEST) -> bool:
    """Whether one play takes longer than that, and smaller networks can stand for it.

    Args:
        longest_s: estimated; infinite for never.
        fewest: workers of the smaller of the two networks, about; the cell must have four times as many.
    """
    if longest_s == math.inf:
        return False
    plain = scenario.network.topology is None and scenario.network.declaration is None
    if not (plain and scenario.workers >= 4 * fewest):
        return False
    if scenario.workers > MOST_PLAYED:
        return True
    # Own messages break a mechanism's symmetry, so all its operations are played; a strategy's server takes turns with all.
    return scenario.choice.strategy.own_messages or cost_of(scenario).seconds > longest_s


def extrapolated(scenario: Scenario, fewest: int = FEWEST) -> tuple[SimulatedIteration, float]:
    """Results of the larger of two small networks, with the time at the scenario's workers.

    Exposed communication grows by about as much with each doubling of the workers, and the racks double every other
    time.

    Args:
        fewest: workers of the smaller of the two, about.

    Returns:
        The results, and the relative standard deviation of the time.

    Raises:
        SimulationError, HostlibError: the scenario is impossible.
    """
    sizes, stages = [(scenario.workers, scenario.network.racks)], scenario.choice.strategy.stages
    while len(sizes) < 3 or 2 * sizes[-1][0] >= 3 * fewest:
        workers, racks = sizes[-1]
        sizes.append((workers // (2 * stages) * stages, max(2, racks // 2) if racks > 2 and len(sizes) % 2 else racks))
    two = [_with_workers(scenario, *size, scenario.jobs) for size in (sizes[-1], sizes[-2])]
    require_playable(two[1])
    few, more = map(Setup.of, two)
    played = more.play()
    result = SimulatedIteration.of(played, scenario.rounds)
    growth = max(0.0, result.iteration_s - few.played_s())
    iteration_s = result.iteration_s + growth * (len(sizes) - 2)
    # The cell itself would take many events, so nobody plays it to find its interval or its limit.
    events = max(result.events, round(cost_of(scenario).played))
    return replace(result, iteration_s=iteration_s, events=events), UNSURE


def _with_workers(scenario: Scenario, workers: int, racks: int, jobs: int) -> Scenario:
    stragglers = {rank: times for rank, times in scenario.variation.stragglers.items() if rank < workers}
    variation = replace(scenario.variation, stragglers=stragglers)
    network = replace(scenario.network, racks=racks)
    return replace(scenario, workers=workers, network=network, jobs=jobs, variation=variation)
