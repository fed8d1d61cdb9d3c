"""What would change an answer: where the fabric's help starts or stops to pay, and a map of that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

from hostlib.errors import HostlibError
from hostlib.protocol.framing import LEGAL_ELEMENTS
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
    """Which mechanism is fastest, by bandwidth and computing speed.

    Attributes:
        bandwidths_bits_s: of the columns.
        speeds: of the rows: factors of the GPU's speed.
        places: by row and column.
    """

    bandwidths_bits_s: tuple[float, ...]
    speeds: tuple[float, ...]
    places: tuple[tuple[Place, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "bandwidths_bits_s": list(self.bandwidths_bits_s),
            "speeds": list(self.speeds),
            "places": [[each.as_json() for each in row] for row in self.places],
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
    if scenario.network.topology is None and not scenario.network.host_links and scenario.variation.is_none:
        counts = [count for count in WORKERS if count > 1 and count >= scenario.network.racks]
        made += _steps(
            contest,
            "workers",
            scenario.workers * gpus,
            [(count * gpus, partial(_with_workers, count)) for count in counts],
        )
    if scenario.semantics.slots:
        own = scenario.semantics.slots
        values = [(count, _semantics(slots=count)) for count in SLOTS]
        made += _steps(contest, "slots", own, values, fabric_only=True, more_helps=True)
    if scenario.semantics.headers:
        values = [(count, _semantics(elements=count)) for count in sorted(LEGAL_ELEMENTS)]
        made += _steps(contest, "elements", scenario.semantics.elements, values, fabric_only=True)
    return made


def speed_map(contest: Contest) -> Map:
    """Who wins, and by how much, at other bandwidths and computing speeds."""
    own = contest.scenario.network.bandwidth_bits_s
    bandwidths = sorted({*(each * 1e9 for each in BANDWIDTHS_GBIT), own})
    speeds = SPEEDS if contest.stand_ins[0][0].setup.compute_s else (1.0,)
    places = in_threads(lambda at: _at(contest, at[0], at[1] / own), product(speeds, bandwidths))
    rows = tuple(tuple(places[at : at + len(bandwidths)]) for at in range(0, len(places), len(bandwidths)))
    return Map(tuple(bandwidths), tuple(speeds), rows)


Changed = Callable[[Scenario], Scenario]


def _with_workers(count: int, scenario: Scenario) -> Scenario:
    return replace(scenario, workers=count)


def _semantics(**changed: int) -> Changed:
    return lambda each: replace(each, semantics=replace(each.semantics, **changed))  # type: ignore[arg-type]


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
    values: Iterable[tuple[int, Changed]],
    fabric_only: bool = False,
    more_helps: bool = False,
) -> list[Change]:
    """The nearest values on both sides of today's at which the fabric pays if it does not today, or the reverse.

    Args:
        values: with what they change of a scenario, in ascending order.
        fabric_only: the hosts' mechanisms stay as they are.
        more_helps: the higher the value, the faster the fabric; so one side is enough, and halving it finds the value.
    """
    hosts_today_s = [each.iteration_ms / 1e3 for each, _ in contest.hosts]
    today = contest.place([each.iteration_ms / 1e3 for each, _ in contest.fabric], hosts_today_s).pays
    values = list(values)

    @cache
    def there(changed: Changed) -> Place | None:
        if fabric_only:
            fabric = zip(contest.stand_ins[0], contest.fabric, strict=True)
            return contest.place([_fabric_s(each, cell, changed) for each, (_, cell) in fabric], hosts_today_s)
        cells = [changed(scenario) for _, scenario in (*contest.fabric, *contest.hosts)]
        times_s = in_threads(_played_s, cells)
        fabric_s, hosts_s = times_s[: len(contest.fabric)], times_s[len(contest.fabric) :]
        return None if min(hosts_s) == float("inf") else contest.place(fabric_s, hosts_s)

    def differs(value: tuple[int, Changed]) -> bool:
        place = there(value[1])
        return place is not None and place.pays is not today

    made = []
    above = [each for each in values if each[0] > now]
    below = [each for each in reversed(values) if each[0] < now]
    for side, ordered in (("above", above), ("below", below)):
        if more_helps and today is (side == "above"):
            continue
        if more_helps:
            first = bisect_left(ordered, True, key=differs)
        else:
            first = next((number for number, each in enumerate(ordered) if differs(each)), len(ordered))
        if first < len(ordered):
            value, changed = ordered[first]
            place = there(changed)
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
