"""What would change an answer: where the fabric's help starts or stops to pay, and a map of that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import product
from typing import Any

from hostlib.errors import HostlibError
from hostlib.protocol.framing import LEGAL_ELEMENTS, ip_bytes
from hostlib.schedules.schedule import FabricUse
from simulation.answers.answer import PAYS
from simulation.answers.break_even import Corrected, break_even
from simulation.answers.setup import Setup
from simulation.answers.stand_in import extrapolated, roughly, takes_long, with_fewer
from simulation.errors import SimulationError
from simulation.experiments.scenario import Scenario
from simulation.recommendation.candidate import Candidate
from simulation.recommendation.search import LONG_S, ROUGH, Found
from simulation.simulator.in_threads import in_threads

NEAR = 1.25  # times the best of its kind; a finalist that is slower here is not played elsewhere
ROUGHNESS = 4  # of what is played there, and of what it is compared with
SMALL = 64  # workers; a smaller network stands for larger ones where one is played at many places
WORKERS = tuple(1 << power for power in range(1, 11))
MAP_WORKERS = (4, 16, 64, 256, 1024)
SLOTS = tuple(1 << power for power in range(11))
BANDWIDTHS_GBIT = (1, 10, 25, 50, 100, 200, 400, 800)
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A place from which the answer is another.

    Attributes:
        what: bandwidth, gpu_speed, workers, slots or elements.
        unit: of `now` and `at`.
        side: the answer is another `above` or `below` that value; `at` is the first value with the other answer.
        fabric_pays: there.
        plan: the fastest there.
    """

    what: str
    unit: str
    now: float
    at: float
    side: str
    fabric_pays: bool
    plan: str

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "now": self.now,
            "at": self.at,
            "side": self.side,
            "fabric_pays": self.fabric_pays,
            "plan": self.plan,
        }


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a map.

    Attributes:
        fabric, hosts: the fastest plan of each kind; fabric_ms, hosts_ms: their times.
        pays: by more than the intervals.
    """

    fabric: str
    hosts: str
    fabric_ms: float
    hosts_ms: float
    pays: bool

    @property
    def speedup(self) -> float:
        return self.hosts_ms / self.fabric_ms if self.fabric_ms else 1.0

    def as_json(self) -> dict[str, Any]:
        return {
            "fabric": self.fabric,
            "hosts": self.hosts,
            "fabric_ms": self.fabric_ms,
            "hosts_ms": self.hosts_ms,
            "speedup": self.speedup,
            "fabric_pays": self.pays,
        }


@dataclass(frozen=True, slots=True)
class Map:
    """Which mechanism is fastest, by bandwidth and computing speed, and by bandwidth and number of workers.

    Attributes:
        bandwidths_bits_s: of the columns.
        speeds: of the rows: factors of the GPU's speed.
        places: by row and column.
        workers: of the rows of `by_workers`; none where the network is of so many hosts.
        by_workers: by row and column, at today's speed.
    """

    bandwidths_bits_s: tuple[float, ...]
    speeds: tuple[float, ...]
    places: tuple[tuple[Place, ...], ...]
    workers: tuple[int, ...] = ()
    by_workers: tuple[tuple[Place, ...], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "bandwidths_bits_s": list(self.bandwidths_bits_s),
            "speeds": list(self.speeds),
            "places": [[each.as_json() for each in row] for row in self.places],
            "workers": list(self.workers),
            "by_workers": [[each.as_json() for each in row] for row in self.by_workers],
        }


@dataclass(frozen=True, slots=True)
class Contest:
    """The finalists of both kinds that are near the best, to be played elsewhere.

    Attributes:
        margin: how many times as fast the fabric must be, to pay by more than the intervals.
        stand_ins: what is played at other bandwidths and speeds, of each kind.
    """

    fabric: tuple[tuple[Candidate, Scenario], ...]
    hosts: tuple[tuple[Candidate, Scenario], ...]
    margin: float
    stand_ins: tuple[tuple[Corrected, ...], tuple[Corrected, ...]]
    _with_workers: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, found: Found) -> Contest | None:
        """Of what a search found; None unless it compared both kinds."""
        fabric, hosts = found.best(True), found.best(False)
        if fabric is None or hosts is None or not fabric.iteration_ms:
            return None
        by_name = {scenario.mechanism: scenario for scenario in found.scenarios}
        kinds = {
            best.uses_fabric: tuple(
                (each, by_name[each.name])
                for each in found.finalists
                if each.uses_fabric is best.uses_fabric and each.iteration_ms <= NEAR * best.iteration_ms
            )
            for best in (fabric, hosts)
        }
        margin = max(PAYS, fabric.high_ms / fabric.iteration_ms * hosts.iteration_ms / hosts.low_ms)
        stand_ins = tuple(map(_stood_in_for, kinds[True])), tuple(map(_stood_in_for, kinds[False]))
        return cls(kinds[True], kinds[False], margin, stand_ins)

    @property
    def scenario(self) -> Scenario:
        return self.fabric[0][1]

    @property
    def least_hosts(self) -> int | None:
        """Of workers, with which its network can be played; None if only with as many as it has."""
        network = self.scenario.network
        fixed = network.topology is not None or network.host_links or not self.scenario.variation.is_none
        return None if fixed else max(2, network.racks)

    def with_workers(self, hosts: int) -> tuple[list[float], list[float]]:
        """Times of the finalists of both kinds with another number of hosts; infinite where they cannot be played."""
        if hosts == self.scenario.workers:
            fabric_s, hosts_s = ([each.iteration_ms / 1e3 for each, _ in kind] for kind in (self.fabric, self.hosts))
            return fabric_s, hosts_s
        if hosts not in self._with_workers:
            cells = [replace(scenario, workers=hosts) for _, scenario in (*self.fabric, *self.hosts)]
            times_s = in_threads(_played_s, cells)
            self._with_workers[hosts] = times_s[: len(self.fabric)], times_s[len(self.fabric) :]
        return self._with_workers[hosts]

    def place(self, fabric_s: Sequence[float], hosts_s: Sequence[float]) -> Place:
        """Compare times of the finalists of both kinds."""
        fabric, hosts = min(fabric_s), min(hosts_s)
        return Place(
            self.fabric[fabric_s.index(fabric)][0].name,
            self.hosts[hosts_s.index(hosts)][0].name,
            fabric * 1e3,
            hosts * 1e3,
            hosts >= self.margin * fabric,
        )


def changes(contest: Contest, tflops: float | None) -> list[Change]:
    """Where the fabric's help starts or stops to pay if one thing changes and all else stays.

    Args:
        tflops: computing speed of a worker, in TFLOP/s; None if unknown, and then speeds are factors of it.
    """
    found = break_even(*contest.stand_ins, contest.margin)
    scenario, made = contest.scenario, []
    rate = scenario.network.bandwidth_bits_s
    speed, unit = (1.0, "times this GPU's") if tflops is None else (tflops, "TFLOP/s")
    for what, of, now, factor, upwards in (
        ("gpu_speed", unit, speed, found.compute, not found.pays),
        ("bandwidth", "bit/s", rate, found.bandwidth, found.pays),
    ):
        if factor is None:
            continue
        there = _at(contest, *((factor, 1.0) if what == "gpu_speed" else (1.0, factor)))
        plan = there.hosts if found.pays else there.fabric
        made.append(Change(what, of, now, now * factor, "above" if upwards else "below", not found.pays, plan))
    gpus = scenario.gpus_per_host
    if contest.least_hosts is not None:
        counts = [count * gpus for count in WORKERS if count >= contest.least_hosts]

        def with_workers(count: int) -> Place | None:
            fabric_s, hosts_s = contest.with_workers(count // gpus)
            return None if min(hosts_s) == float("inf") else contest.place(fabric_s, hosts_s)

        made += _steps(contest, "workers", scenario.workers * gpus, counts, with_workers)
    hosts_today_s = [each.iteration_ms / 1e3 for each, _ in contest.hosts]

    def with_semantics(name: str, value: int) -> Place:
        def changed(each: Scenario) -> Scenario:
            return replace(each, semantics=replace(each.semantics, **{name: value}))  # type: ignore[arg-type]

        fabric = zip(contest.stand_ins[0], contest.fabric, strict=True)
        return contest.place([_fabric_s(each, cell, changed) for each, (_, cell) in fabric], hosts_today_s)

    if own := scenario.semantics.slots:
        made += _steps(contest, "slots", own, SLOTS, partial(with_semantics, "slots"), more_helps=True)
    if scenario.semantics.headers:
        own = scenario.semantics.elements
        carried = [each for each in LEGAL_ELEMENTS if ip_bytes(each) <= scenario.semantics.framing.mtu]
        made += _steps(contest, "elements", own, carried, partial(with_semantics, "elements"))
    return made


def speed_map(contest: Contest) -> Map:
    """Who wins, and by how much, at other bandwidths and computing speeds."""
    own = contest.scenario.network.bandwidth_bits_s
    bandwidths = sorted({*(each * 1e9 for each in BANDWIDTHS_GBIT), own})
    speeds = SPEEDS if contest.stand_ins[0][0].setup.compute_s else (1.0,)
    places = in_threads(lambda at: _at(contest, at[0], at[1] / own), product(speeds, bandwidths))
    rows = tuple(tuple(places[at : at + len(bandwidths)]) for at in range(0, len(places), len(bandwidths)))
    by_workers = _by_workers(contest, [each / own for each in bandwidths])
    gpus = contest.scenario.gpus_per_host
    workers = tuple(hosts * gpus for hosts in by_workers)
    return Map(tuple(bandwidths), tuple(speeds), rows, workers, tuple(by_workers.values()))


def _by_workers(contest: Contest, bandwidths: Sequence[float]) -> dict[int, tuple[Place, ...]]:
    """Who wins with other numbers of hosts, at so many times today's bandwidth."""
    least = contest.least_hosts
    if least is None:
        return {}
    made = {}
    for hosts in sorted({*(each for each in MAP_WORKERS if each >= least), contest.scenario.workers}):
        fabric_s, hosts_s = contest.with_workers(hosts)
        if float("inf") in (min(fabric_s), min(hosts_s)):
            continue
        cells = [cell for _, cell in (*contest.fabric, *contest.hosts)]
        today = [*contest.stand_ins[0], *contest.stand_ins[1]]
        stand_ins = in_threads(partial(_stood_in_with, hosts), zip(cells, today, (*fabric_s, *hosts_s), strict=True))
        kinds = stand_ins[: len(fabric_s)], stand_ins[len(fabric_s) :]

        made[hosts] = tuple(in_threads(partial(_place_with, contest, *kinds), bandwidths))
    return made


def _stood_in_with(hosts: int, finalist: tuple[Scenario, Corrected, float]) -> Corrected | None:
    """What is played for a finalist with another number of hosts; None if it cannot be.

    Args:
        finalist: its cell, what is played for it today, and its time with so many hosts.
    """
    scenario, today, time_s = finalist
    if time_s == float("inf"):
        return None
    here, there = (_stand_in(replace(scenario, workers=each)) for each in (scenario.workers, hosts))
    if here == there:
        return today.standing_for(time_s)
    setup = Setup.of(there)
    return Corrected.to(time_s, setup, setup.played_s())


def _place_with(
    contest: Contest, fabric: Sequence[Corrected | None], hosts: Sequence[Corrected | None], bandwidth: float
) -> Place:
    """Who wins at so many times today's bandwidth."""
    times = [
        [float("inf") if each is None else each.played_s(1.0, bandwidth) for each in kind] for kind in (fabric, hosts)
    ]
    return contest.place(*times)


Changed = Callable[[Scenario], Scenario]


def _stand_in(scenario: Scenario) -> Scenario:
    """What is played for a finalist's scenario at other places."""
    fewer = scenario.workers > SMALL and scenario.network.topology is None
    return roughly(with_fewer(scenario) if fewer else scenario, ROUGHNESS)


def _stood_in_for(finalist: tuple[Candidate, Scenario]) -> Corrected:
    candidate, scenario = finalist
    setup = Setup.of(_stand_in(scenario))
    return Corrected.to(candidate.iteration_ms / 1e3, setup, setup.played_s())


def _at(contest: Contest, compute: float, bandwidth: float) -> Place:
    """With other speeds, by their factors."""
    times = [[each.played_s(compute, bandwidth) for each in kind] for kind in contest.stand_ins]
    return contest.place(*times)


def _steps(
    contest: Contest,
    what: str,
    now: int,
    values: Sequence[int],
    place_at: Callable[[int], Place | None],
    more_helps: bool = False,
) -> list[Change]:
    """The nearest values on both sides of today's at which the fabric pays if it does not today, or the reverse.

    Args:
        values: in ascending order.
        place_at: who wins with one; None if nothing can be played.
        more_helps: the higher the value, the faster the fabric; so one side is enough, and halving it finds the value.
    """
    today = contest.place(*contest.with_workers(contest.scenario.workers)).pays
    there = cache(place_at)

    def differs(value: int) -> bool:
        place = there(value)
        return place is not None and place.pays is not today

    made = []
    above = [each for each in values if each > now]
    below = [each for each in reversed(values) if each < now]
    for side, ordered in (("above", above), ("below", below)):
        if more_helps and today is (side == "above"):
            continue
        if more_helps:
            first = bisect_left(ordered, True, key=differs)
        else:
            first = next((number for number, each in enumerate(ordered) if differs(each)), len(ordered))
        if first < len(ordered):
            value = ordered[first]
            place = there(value)
            assert place is not None, "it differs"
            plan = place.fabric if place.pays else place.hosts
            made.append(Change(what, what, now, value, side, place.pays, plan))
    return made


def _fabric_s(stand_in: Corrected, scenario: Scenario, changed: Changed) -> float:
    """Time of an iteration with other slots or packets; infinite if it cannot be played."""
    if scenario.choice.mechanism.fabric_use is FabricUse.MULTICAST:  # all workers' streams share the slots
        return _played_s(changed(scenario))
    try:
        return Corrected(Setup.of(changed(_stand_in(scenario))), stand_in.exposed).played_s(1.0, 1.0)
    except (SimulationError, HostlibError):
        return float("inf")


def _played_s(scenario: Scenario) -> float:
    """Time of an iteration; infinite if it cannot be played."""
    rough = roughly(scenario, ROUGHNESS)
    try:
        if takes_long(scenario, LONG_S, ROUGH):
            return extrapolated(rough, ROUGH)[0].iteration_s
        return Setup.of(rough).played_s()
    except (SimulationError, HostlibError):
        return float("inf")
