"""Whether a cell's time is the network's: by what its own processes lacked, not by how busy this machine was.

The limits are measured: docs/measurements/validity.md.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import Enum

from emulation.experiments.measurement import Lack, Measured
from hostlib.system.machine import BUSY

RANK_WAITED, SWITCH_WAITED = 0.15, 0.2  # of the time, without a core
LATE = 0.0025  # of an iteration, its latest wake-up: times were too long by about seven times that
LATE_ON_HOSTS = 0.02  # nothing else is late there
AGAIN = 0.01  # of a worker's packets: its link carries them twice, so it takes at least as much longer
DISAGREE = 0.05  # slowest less fastest iteration, relative to the median
OTHERS = 0.2  # of all cores: above that, something else is a cause
COMFORTABLE = 0.6  # of a limit, that a suggested dilation leaves
LEAST_STEP = 1.5  # factor between suggested dilations
MOST_STEP = 4.0


class Cause(Enum):
    """Why a cell is invalid."""

    BUSY = "busy"  # the cell by itself was more than this machine can do
    WAITED = "waited"  # its processes waited for a core
    LATE = "late"  # its workers woke up too late
    AGAIN = "again"  # packets were sent again, though none was to be lost
    LOAD = "load"  # its processes waited or were late, and something else used the cores
    ITERATIONS = "iterations"  # its iterations differ, though nothing was lacked


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Why a cell's result reflects this machine instead of the network.

    Attributes:
        dilation: that would mend it; None if none would.
    """

    cause: Cause
    why: str
    dilation: int | None


@dataclass(frozen=True, slots=True)
class _Exceeded:
    """A limit that was exceeded.

    Attributes:
        times: how many times the limit.
    """

    cause: Cause
    what: str
    times: float


def bottleneck(measured: Measured, dilation: float, random: bool = False, drops: bool = False) -> Bottleneck | None:
    """The part of this machine that was too slow for a cell, if any.

    Args:
        random: iterations differ by themselves: links lose frames at random, or models are really trained.
        drops: links drop frames, as they were told: at random, or by queues that are shorter than usual.
    """
    exceeded = [each for each in _shares(measured) if each.times > 1]
    if exceeded:
        worst = max(exceeded, key=lambda each: each.times)
        step = min(MOST_STEP, max(LEAST_STEP, worst.times / COMFORTABLE))
        enough = math.ceil(dilation * step)
        lack = measured.lack
        if lack is None:  # real hosts, of which nothing is dilated
            remedy = ": --controller names a faster fabric's" if worst.cause is Cause.BUSY else ""
            return Bottleneck(worst.cause, f"{worst.what}{remedy}", None)
        if worst.cause is not Cause.BUSY and lack is not None and lack.others > OTHERS and lack.others > lack.own:
            first = "" if os.sched_getscheduler(0) == os.SCHED_RR else "--real-time or "
            why = (
                f"something else loads this machine ({lack.others:.0%} of its cores, this cell {lack.own:.0%}), and "
                f"{worst.what}: end it, or run again with {first}--dilation {enough}"
            )
            return Bottleneck(Cause.LOAD, why, enough)
        return Bottleneck(worst.cause, f"{worst.what}: run again with --dilation {enough}", enough)
    if measured.again > AGAIN and not drops and measured.lack is not None:  # what real networks drop is theirs
        enough = math.ceil(dilation * LEAST_STEP)
        why = (
            f"a worker sent {measured.again:.1%} of its packets again, though no link loses any and it lacked nothing: run "
            f"again with --dilation {enough}"
        )
        return Bottleneck(Cause.AGAIN, why, enough)
    differ = measured.spread_ms / measured.iteration_ms
    if differ > DISAGREE and not random and measured.lack is not None:
        again = f", and {measured.retransmits:,} packets were sent again" if measured.retransmits else ""
        why = f"its iterations differ by {differ:.0%}, though it lacked nothing{again}: measure more iterations"
        return Bottleneck(Cause.ITERATIONS, why, None)
    return None


def _shares(measured: Measured) -> list[_Exceeded]:
    """Each share of the time, as a multiple of its limit."""
    lack = measured.lack
    late = LATE if lack is not None else LATE_ON_HOSTS
    found = [
        _Exceeded(Cause.LATE, f"workers woke up late, by {measured.latest:.1%} of an iteration", measured.latest / late)
    ]
    for name, busy in measured.cpu.items():
        if name not in ("machine", "controller"):
            found.append(_Exceeded(Cause.BUSY, f"{name} was {busy:.0%} busy", busy / BUSY))
    if lack is not None:
        found.append(_Exceeded(Cause.BUSY, f"this cell used {lack.own:.0%} of all cores", lack.own / BUSY))
        found += _waits(lack)
    return found


def _waits(lack: Lack) -> list[_Exceeded]:
    return [
        _Exceeded(Cause.WAITED, f"{name} waited for a core for {waited:.0%} of the time", waited / limit)
        for shares, limit in ((lack.switches, SWITCH_WAITED), (lack.ranks, RANK_WAITED))
        for name, waited in shares.items()
    ]
