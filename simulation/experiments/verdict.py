"""Does help from the fabric beat the hosts? In one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from hostlib.strategies.strategy import choose
from simulation.experiments.single_iteration import SimulatedIteration

SAME = 1.005  # times as fast, below which nothing is said to be faster


def verdict(results: Mapping[str, SimulatedIteration]) -> str | None:
    """Compare the fastest mechanism that uses the fabric with the fastest of the hosts.

    Args:
        results: by MECHANISM or STRATEGY/MECHANISM.

    Returns:
        A sentence; None where one of the two kinds is missing.
    """
    fastest: dict[bool, tuple[float, str]] = {}
    for name, result in results.items():
        uses_fabric = choose(name).mechanism.needs_fabric
        fastest[uses_fabric] = min(fastest.get(uses_fabric, (float("inf"), name)), (result.iteration_s, name))
    if len(fastest) < 2:
        return None
    (fabric_s, fabric), (host_s, host) = fastest[True], fastest[False]
    if max(fabric_s, host_s) < SAME * min(fabric_s, host_s):
        return f"{fabric} and {host}, the best host mechanism, take the same time."
    if fabric_s < host_s:
        return f"{fabric} is {host_s / fabric_s:.2f} times as fast as {host}, the best host mechanism."
    return f"The fabric does not help: {host}, a host mechanism, is {fabric_s / host_s:.2f} times as fast as {fabric}."
