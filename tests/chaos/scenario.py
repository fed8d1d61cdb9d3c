"""What a run of the campaign is: drawn from the campaign's seed and the run's number alone."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

DEADLINE_S = 4.0


@dataclass(frozen=True, slots=True)
class Equipment:
    """A controller and its switch: elements per packet, probability of loss, duplication and reordering each."""

    elements: int
    fault: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained. With the packet's elements it decides the weights; nothing else may."""

    world_size: int
    mechanism: str
    model: str
    bucket_mb: float
    batch_size: int
    epochs: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of blow.

    Attributes:
        victims: controller, switch or rank.
        signal: KILL or STOP.
        lasts_s: shortest and longest time to SIGCONT; None for ever.
        weight: how often it is drawn.
    """

    victims: tuple[str, ...]
    signal: str
    lasts_s: tuple[float, float] | None
    weight: int

    @property
    def ends_the_run(self) -> bool:
        return "rank" in self.victims and self.lasts_s is None


KINDS = {
    "kill-switch": Kind(("switch",), "KILL", None, 6),
    "stop-switch": Kind(("switch",), "STOP", None, 3),
    "pause-switch": Kind(("switch",), "STOP", (0.2, 4.0), 5),
    "kill-rank": Kind(("rank",), "KILL", None, 3),
    "stop-rank": Kind(("rank",), "STOP", None, 2),
    "pause-rank": Kind(("rank",), "STOP", (0.2, 2.5), 4),
    "kill-controller": Kind(("controller",), "KILL", None, 2),
    "kill-both": Kind(("controller", "switch"), "KILL", None, 2),
}
NONE, TWO = "none", "two"
# What is trained depends on the faults: every lost packet costs a timeout.
SIZES = {
    # (model, bucket in MiB, batch per rank, epochs)
    Equipment(64, 0.0): (("lenet", 0.05, 16, 12), ("lenet", 1.0, 32, 16), ("vgg", 2.0, 32, 3)),
    Equipment(256, 0.0): (("lenet", 0.05, 16, 12), ("lenet", 1.0, 32, 16), ("vgg", 2.0, 32, 3)),
    Equipment(256, 0.01): (("lenet", 0.05, 32, 4), ("lenet", 1.0, 32, 6)),
    Equipment(64, 0.05): (("lenet", 1.0, 64, 1),),
}
MECHANISMS = ("inagg+mcast", "inagg+mcast", "bsp/inagg+mcast", "ring")


@dataclass(frozen=True, slots=True)
class Blow:
    """One signal to one or two processes.

    Attributes:
        after: the part of all steps after which it comes, 0 to 1.
        delay_s: and so much later, to hit any part of a step.
        rank: the victim, if it is a rank.
        lasts_s: until SIGCONT; None for ever.
    """

    kind: str
    after: float
    delay_s: float
    rank: int
    lasts_s: float | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. `kind` is none, that of its blow, or two."""

    seed: int
    number: int
    kind: str
    equipment: Equipment
    workload: Workload
    blows: tuple[Blow, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def draw(seed: int, number: int, only_kind: str | None = None) -> Scenario:
    """The run of this number; the same for the same seed."""
    chance = random.Random(f"netfold chaos {seed}/{number}")
    names = [NONE, TWO, *KINDS]
    weights = [2, 5, *(kind.weight for kind in KINDS.values())]
    kind = chance.choices(names, weights)[0]
    if only_kind is not None:
        kind = only_kind
    equipment = chance.choice(list(SIZES))
    model, bucket_mb, batch_size, epochs = chance.choice(SIZES[equipment])
    world_size, mechanism = chance.randint(2, 4), chance.choice(MECHANISMS)
    workload = Workload(world_size, mechanism, model, bucket_mb, batch_size, epochs)
    kinds = {NONE: [], TWO: chance.choices(list(KINDS), [each.weight for each in KINDS.values()], k=2)}.get(
        kind, [kind]
    )
    blows = sorted((_blow(chance, each, world_size) for each in kinds), key=lambda blow: blow.after)
    if kind == TWO and chance.random() < 0.5:
        # While the ranks are still busy with the first.
        first, second = blows
        blows[1] = replace(second, after=first.after, delay_s=round(first.delay_s + chance.uniform(0, 3), 4))
    return Scenario(seed, number, kind, equipment, workload, tuple(blows))


def _blow(chance: random.Random, kind: str, world_size: int) -> Blow:
    lasts_s = KINDS[kind].lasts_s
    return Blow(
        kind,
        after=round(chance.random() ** 2, 3),  # Rather early: what comes afterwards is of interest, too.
        delay_s=round(chance.uniform(0, 0.1), 4),
        rank=chance.randrange(world_size),
        lasts_s=None if lasts_s is None else round(chance.uniform(*lasts_s), 3),
    )
