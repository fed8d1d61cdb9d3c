"""Intervals: the same cell with other computing times, rates and costs.

Everything that is perturbed is an input of the simulation. Each perturbed cell is played anew, with the same schedules,
so what waits for what is preserved: a slow step delays all that depends on it, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from simulation.answers.setup import Setup

# Widths of what a model of a cluster cannot know. They are calibrated so that intervals cover nine of ten emulated
# cells (docs/measurements/simulator-accuracy.md).
COMPUTE_SD = 0.015  # of computing times, all workers together: clocks, temperatures, the trace's own error
STEP_JITTER = 0.02  # of one step of one worker: standard deviation over mean
RATE_SD = 0.015  # of links' rates: what headers, pauses and other traffic take
LATENCY_SD = 0.03
MESSAGE_NS = 300  # of a message's cost on its host, which is at least 0
TURNAROUND_NS = 1000  # from a result to the next frame in its slot, which is at least 0
MODEL_SD = 0.015  # of what the simulator leaves out: congestion control, summing on hosts; as 157 emulated cells had it

QUANTILE = NormalDist().inv_cdf(0.95)  # intervals are from the 5th to the 95th percentile
PLAYS, FEWEST_PLAYS = 16, 6
PROPAGATED = 64  # draws where sensitivities stand for plays


@dataclass(frozen=True, slots=True)
class Draw:
    """One perturbation; factors are of computing times, rates and latencies.

    Attributes:
        slowest: quantile of the slowest worker among all, from 0 to 1.
    """

    compute: float
    rate: float
    latency: float
    message_ns: int
    turnaround_ns: int
    slowest: float
    seed: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds; the time without perturbations is within."""

    low: float
    high: float

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def draws(seed: int, count: int) -> Iterator[Draw]:
    """Perturbations; the same seed gives the same ones, to every mechanism.

    Each input's values are evenly spread over its distribution, and combined at random (a Latin hypercube): so few
    draws have the distribution's width.
    """
    random = np.random.default_rng([seed, 0x5EED])
    even = [(place + 0.5) / count for place in range(count)]
    normal = [NormalDist().inv_cdf(quantile) for quantile in even]

    def mixed(values: list[float]) -> list[float]:
        return [values[place] for place in random.permutation(count)]

    columns = (mixed(normal), mixed(normal), mixed(normal), mixed(normal), mixed(normal), mixed(even))
    for compute, rate, latency, message, turnaround, slowest_of in zip(*columns, strict=True):
        yield Draw(
            math.exp(COMPUTE_SD * compute),
            math.exp(RATE_SD * rate),
            math.exp(LATENCY_SD * latency),
            round(MESSAGE_NS * abs(message)),
            round(TURNAROUND_NS * abs(turnaround)),
            slowest_of,
            int(random.integers(2**62)),
        )


def perturbed(setup: Setup, draw: Draw) -> Setup:
    """A cell with one perturbation, in which each worker's steps vary by themselves."""
    made = setup.rates(draw.rate, draw.rate).latency(draw.latency).host_costs(draw.message_ns, draw.turnaround_ns)
    made = made.cores(draw.rate).host_link(draw.rate)  # as sure as the network's links are
    return made.computing(draw.compute).varied(STEP_JITTER, draw.seed)


def slowest(setup: Setup, quantile: float) -> float:
    """Computing time of the slowest of a cell's workers over the mean.

    A worker's time is the sum of its steps' times, which vary independently; the largest of n such sums is below the
    normal distribution's quantile of q^(1/n) with probability q.
    """
    workload = setup.job.workload
    steps = np.concatenate([workload.forward_ns, workload.backward_ns[0]]).astype(float)
    if not steps.sum():
        return 1.0
    deviation = STEP_JITTER * math.sqrt(float((steps**2).sum())) / float(steps.sum())
    return 1.0 + deviation * NormalDist().inv_cdf(min(quantile ** (1 / setup.job.workers), 1 - 1e-12))


def played_interval(setup: Setup, nominal_s: float, seed: int, plays: int) -> Interval:
    """The interval of a cell, from plays."""
    logs = [math.log(perturbed(setup, draw).played_s() / nominal_s) for draw in draws(seed, plays)]
    return _interval(nominal_s, logs)


def propagated_interval(
    setup: Setup,
    nominal_s: float,
    elasticities: Mapping[str, float],
    per_message_ns: float,
    deviation: float,
    seed: int,
) -> Interval:
    """The interval of a cell, from how its time changes with each input: for cells whose plays take long.

    Perturbations are some percent, in which a time changes about linearly with each of them. How it changes is found by
    plays too, with inputs that all workers share, so in a symmetric schedule one worker still stands for all. Workers'
    own variation enters as that of the slowest: each sum waits for it.

    Args:
        elasticities: percent by which the time falls for each percent by which a resource improves (see what_if).
        deviation: relative, of plays with jitter.
        per_message_ns: relative increase for each nanosecond that a message costs on hosts.
    """
    links = sum(elasticities.get(name, 0.0) for name in ("hosts", "uplinks", "cores", "host link"))
    logs = [
        elasticities.get("compute", 0.0) * math.log(draw.compute * slowest(setup, draw.slowest))
        - links * math.log(draw.rate)
        + elasticities.get("latency", 0.0) * math.log(draw.latency)
        + math.log1p(per_message_ns * draw.message_ns)
        for draw in draws(seed, PROPAGATED)
    ]
    return _interval(nominal_s, logs, deviation)


def _interval(nominal_s: float, logs: list[float], also: float = 0.0) -> Interval:
    """From logarithms of factors of the time, and the deviation of what they lack."""
    mean, deviation = float(np.mean(logs)), math.hypot(float(np.std(logs)), MODEL_SD, also)
    return Interval(
        nominal_s * math.exp(min(0.0, mean - QUANTILE * deviation)),
        nominal_s * math.exp(max(0.0, mean + QUANTILE * deviation)),
    )
