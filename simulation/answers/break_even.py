"""Where help from the fabric begins or ceases to pay: at which speed of computing, at which bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulation.answers.setup import Setup
from simulation.errors import SimulationError

WIDEST = 64.0  # factors of today's value between which it is looked for
STEPS = 7  # halvings of that range, which leave 7 % of it
EFFECTIVE = 1.02  # times as fast, from which help pays


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Factors of today's computing speed and bandwidth where the fabric is as fast as the hosts; None: nowhere.

    Attributes:
        pays: whether it is faster today.
    """

    pays: bool
    compute: float | None
    bandwidth: float | None


def break_even(fabric: Sequence[Setup], hosts: Sequence[Setup]) -> BreakEven:
    """Find the factors by bisection; at each, the best of both kinds are compared.

    The faster the workers compute and the slower the links are, the more there is to gain.

    Args:
        fabric, hosts: the best mechanisms of both kinds.
    """

    def pays(compute: float, bandwidth: float) -> bool:
        fabric_s, hosts_s = (
            min(setup.computing(1 / compute).rates(bandwidth, bandwidth).played_s() for setup in kind)
            for kind in (fabric, hosts)
        )
        return hosts_s >= EFFECTIVE * fabric_s

    today = pays(1.0, 1.0)
    computes = fabric[0].compute_s > 0
    return BreakEven(
        today,
        _crossing(lambda factor: pays(factor, 1.0), today, 1 / WIDEST if today else WIDEST) if computes else None,
        _crossing(lambda factor: pays(1.0, factor), today, WIDEST if today else 1 / WIDEST),
    )


def _crossing(pays: Callable[[float], bool], today: bool, far: float) -> float | None:
    """Between today's value and the end of the range; None if it pays, or does not, over all of it."""
    try:
        if pays(far) is today:
            return None
        near, beyond = 0.0, math.log(far)
        for _ in range(STEPS):
            middle = (near + beyond) / 2
            near, beyond = (middle, beyond) if pays(math.exp(middle)) is today else (near, middle)
    except SimulationError:  # no such network can be played
        return None
    return math.exp((near + beyond) / 2)
