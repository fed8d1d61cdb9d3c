"""What limits a cell: each resource is improved by itself, and the cell played again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hostlib.schedules.schedule import FabricUse
from simulation.answers.setup import Setup
from simulation.simulator.play import Played

BETTER = 1.1
ALIKE = 0.98  # links with this share of the busiest one's time are as busy
LIFTED = 1.01  # times the time without any limit of slots: that is enough
MOST_SLOTS = 1 << 14
NEGLIGIBLE = 0.01
NAMES = {
    "compute": "computing",
    "cores": "the hosts' cores",
    "host link": "the link between a host's GPUs",
    "latency": "latency",
    "recirculation": "the switch's recirculation port",
    "host": "the hosts' cost of a message",
}


def elasticities(setup: Setup, nominal_s: float) -> dict[str, float]:
    """Percent by which the time falls for each percent by which a resource improves, by resource.

    Resources are compute, hosts (their links), cores (of hosts), recirculation (the switch's port), host link (between a host's GPUs), uplinks, slots, latency, and host
    (its cost of a message); those that a cell does not have are absent.
    """
    better = {"compute": (setup.computing(1 / BETTER), BETTER), "hosts": (setup.rates(BETTER, 1), BETTER)}
    if setup.has_uplinks:
        better["uplinks"] = setup.rates(1, BETTER), BETTER
    if setup.has_cores:
        better["cores"] = setup.cores(BETTER), BETTER
    if setup.has_recirculation:
        better["recirculation"] = setup.recirculation(BETTER), BETTER
    if setup.job.host_ps_per_byte:
        better["host link"] = setup.host_link(BETTER), BETTER
    if setup.latency_ns:
        better["latency"] = setup.latency(1 / BETTER), BETTER
    if setup.network.overhead_ns:
        fewer = round(setup.network.overhead_ns * (1 / BETTER - 1))
        better["host"] = setup.host_costs(fewer), BETTER
    if setup.has_window:
        # Streams of chunks have powers of two.
        by = 2.0 if setup.job.mechanism.fabric_use is FabricUse.MULTICAST else BETTER
        better["slots"] = setup.slots(math.ceil(setup.network.slots * by)), by
    return {
        name: max(0.0, -math.log(other.played_s() / nominal_s) / math.log(by)) for name, (other, by) in better.items()
    }


def limited_by(found: Mapping[str, float], setup: Setup, played: Played, cheap: bool) -> str:
    """What limits a cell, in words: the resource whose improvement gains most, and the busiest of its links.

    Args:
        found: of elasticities.
        cheap: it may be played some more times, to find how many slots would not limit it.
    """
    most = max(found, key=lambda name: found[name])
    if found[most] < NEGLIGIBLE:
        return "nothing"
    if most in ("hosts", "uplinks"):
        return _busiest(setup, played, most == "uplinks")
    if most == "slots":
        return _window(setup) if cheap else f"{setup.network.slots} slots"
    return NAMES[most]


def _busiest(setup: Setup, played: Played, uplinks: bool) -> str:
    """The link of a kind that is busy for longest, or all that are as busy."""
    rates = {}
    if setup.network.topology is not None:
        rates = {cable.lower: cable.rate_bits_s for cable in setup.network.topology.cables}
    busy = {
        name: max(way) / (rates.get(name) or setup.network.bandwidth_bits_s)
        for name, way in played.link_bytes.items()
        if name.startswith(("worker", "server")) is not uplinks
    }
    if not busy:
        return "the hosts' links"
    top = max(busy, key=lambda name: busy[name])
    as_busy = [name for name in busy if busy[name] >= ALIKE * busy[top]]
    if uplinks:
        return f"{top}'s uplink" if len(as_busy) == 1 else "the uplinks"
    if len(as_busy) == 1:
        servers = [name for name in busy if name.startswith("server")]
        return "the server's link" if servers == [top] else f"{top}'s link"
    return "the servers' links" if all(name.startswith("server") for name in as_busy) else "the hosts' links"


def _window(setup: Setup) -> str:
    """The number of slots, and which number would not limit it."""
    slots = setup.network.slots
    # Without a limit there would be no prologues, either.
    unlimited_s = setup.slots(2 * MOST_SLOTS).played_s()
    more = slots
    while more < MOST_SLOTS:
        more *= 2
        if setup.slots(more).played_s() <= LIFTED * unlimited_s:
            return f"{slots} slots ({more} would do)"
    return f"{slots} slots"
