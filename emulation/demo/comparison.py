"""The demo's runs in sentences: the switch against the hosts, and why weights differ between mechanisms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hostlib.schedules.schedule import FabricUse
from hostlib.strategies.strategy import choose

REFERENCE = "ring"  # what a mechanism of the switch is compared with, if it ran
SAME_TIME = 0.05  # a smaller relative difference of medians is not worth a sentence


@dataclass(frozen=True, slots=True)
class Comparison:
    """One mechanism that uses the switch, against one of the hosts alone, by their results.

    Attributes:
        speedup: the hosts' median iteration over the switch's; above 1 where the switch is faster.
        fewer_bytes: share of the bytes that workers send less; below 0 where they send more.
        accuracy: test accuracy under the switch and under the hosts.
    """

    switch: str
    hosts: str
    speedup: float
    fewer_bytes: float
    accuracy: tuple[float, float]

    @property
    def sentence(self) -> str:
        bytes_word = "fewer" if self.fewer_bytes >= 0 else "more"
        learnt, other = (f"{each:.4f}" for each in self.accuracy)
        accuracy = f"same accuracy ({learnt})" if learnt == other else f"accuracy {learnt} instead of {other}"
        return (
            f"the switch ({self.switch}): {self._speed}, {abs(self.fewer_bytes):.0%} {bytes_word} bytes on the wire, "
            f"{accuracy}"
        ).replace("%", " %")

    @property
    def _speed(self) -> str:
        hosts = f"the {self.hosts}" if self.hosts == REFERENCE else self.hosts
        if abs(self.speedup - 1) < SAME_TIME:
            return f"as fast as {hosts} here"
        if self.speedup > 1:
            return f"{self.speedup:.1f} times faster than {hosts} here"
        return f"{1 / self.speedup:.1f} times slower than {hosts} here"

    def as_json(self) -> dict[str, Any]:
        return {
            "switch": self.switch,
            "hosts": self.hosts,
            "speedup": self.speedup,
            "fewer_bytes": self.fewer_bytes,
            "sentence": self.sentence,
        }


def compare(runs: Mapping[str, Mapping[str, Any]]) -> list[Comparison]:
    """Every run through the switch against the ring, or else the first run of the hosts alone; empty without both.

    Args:
        runs: results of `hostlib train` by mechanism.
    """
    through_switch = [name for name in runs if choose(name).mechanism.needs_fabric]
    hosts = sorted((name for name in runs if name not in through_switch), key=lambda name: name != REFERENCE)
    return [_compared(name, runs[name], hosts[0], runs[hosts[0]]) for name in through_switch if hosts]


def _compared(name: str, switch: Mapping[str, Any], other_name: str, hosts: Mapping[str, Any]) -> Comparison:
    sent = [sum(link["sent"] for link in run["link_bytes"].values()) for run in (switch, hosts)]
    return Comparison(
        name,
        other_name,
        hosts["iteration_ms_median"] / switch["iteration_ms_median"],
        1 - sent[0] / sent[1] if sent[1] else 0.0,
        (switch["test_accuracy"], hosts["test_accuracy"]),
    )


def about_weights(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Which mechanisms end with the same weights, and why others do not; "" for a single run.

    Args:
        runs: results of `hostlib train` by mechanism, each with equal weights on all ranks.
    """
    if len(runs) < 2:
        return ""
    if len({run["weights_sha256"][0] for run in runs.values()}) == 1:
        return f"The weights are the same under {_listed(list(runs))}, bit for bit."
    fixed = [name for name in runs if _in_fixed_point(name)]
    floating = [name for name in runs if name not in fixed]
    sentences = ["The weights' hashes differ between mechanisms, because sums are rounded differently."]
    if fixed:
        sentences.append(f"Under {_listed(fixed)} the switch adds integers, to which floats are scaled block by block.")
    if len(floating) > 1:
        sentences.append(
            f"Under {_listed(floating)} hosts add floats, each in its own order, and order changes rounding."
        )
    elif floating:
        sentences.append(f"Under {floating[0]} hosts add floats, whose sum depends on their order.")
    return " ".join(sentences)


def _in_fixed_point(name: str) -> bool:
    mechanism = choose(name).mechanism
    return mechanism.needs_fabric and mechanism.fabric_use is not FabricUse.MULTICAST


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
