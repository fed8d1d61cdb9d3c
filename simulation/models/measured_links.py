"""Hosts' links as `hostlib bench --probe` measured them, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from hostlib.protocol.framing import Framing
from hostlib.system.pair_links import PairLink, read_links
from simulation.errors import SimulationError
from simulation.simulator.network import HostLink, Network

MEASURED_BY = "measured by `hostlib bench --probe`"
# A pair of equal links is measured a little faster or slower each time. Round trips vary by more than rates.
SLACK = 0.1
LATE = 2.0  # times the shortest latency

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MeasuredLinks:
    """What pairs of hosts reached, and the links that explain it.

    A pair is as fast as the slower of its hosts' links, so a host's link is as fast as the fastest pair it is in. What
    makes a pair slower than both its hosts' links is between them, and is taken as a limit of all hosts.

    Attributes:
        path: of the file.
        gbit_s: of each host's link, of values.
        latency_us: of each host's link, one way; two make a pair's.
        narrow: the slowest pair that its hosts' links do not explain.
    """

    path: Path
    gbit_s: tuple[float, ...]
    latency_us: tuple[float, ...]
    narrow: Pair | None = None

    @classmethod
    def read(cls, path: Path, hosts: int) -> MeasuredLinks:
        """Read a file.

        Args:
            hosts: that the question has.

        Raises:
            HostlibError: the file cannot be read, or is something else.
            SimulationError: it has other hosts.
        """
        links = read_links(path)
        measured = 1 + max(max(each.first, each.second) for each in links)
        if measured != hosts:
            raise SimulationError(
                f"--links: {path} has links between {measured} hosts, and {hosts} {'is' if hosts == 1 else 'are'} asked "
                f"for; --workers {measured} is legal, or {measured} times --gpus-per-host"
            )
        return cls.of(path, {(each.first, each.second): each for each in links}, hosts)

    @classmethod
    def of(cls, path: Path, pairs: Mapping[Pair, PairLink], hosts: int) -> MeasuredLinks:
        """The links that explain what all pairs of hosts reached."""
        of_host = [[each for pair, each in pairs.items() if host in pair] for host in range(hosts)]
        gbit_s = [max(each.gbit_s for each in of) for of in of_host]
        unexplained = {
            pair: each.gbit_s
            for pair, each in pairs.items()
            if each.gbit_s < (1 - SLACK) * min(gbit_s[pair[0]], gbit_s[pair[1]])
        }
        narrow = min(unexplained, key=lambda pair: unexplained[pair], default=None)
        if narrow is not None:
            gbit_s = [min(each, unexplained[narrow]) for each in gbit_s]
        if min(gbit_s) >= (1 - SLACK) * max(gbit_s):
            gbit_s = [median(gbit_s)] * hosts
        return cls(path, tuple(gbit_s), tuple(_latencies_us(pairs, hosts)), narrow)

    @property
    def alike(self) -> bool:
        """Whether all hosts' links are taken to be equal."""
        return len(set(self.gbit_s)) == 1 and len(set(self.latency_us)) == 1

    def on(self, network: Network, framing: Framing | None) -> Network:
        """A network with these links. Hosts that were not measured, as servers, are as the slowest.

        Args:
            framing: in which values were measured, where links carry headers; None where they carry none.
        """
        values, taken = (1, 1) if framing is None else framing.tcp_segment()
        links = [
            HostLink(each * 1e9 * taken / values, round(late * 1e3))
            for each, late in zip(self.gbit_s, self.latency_us, strict=True)
        ]
        slowest, latest = min(each.rate_bits_s for each in links), max(each.delay_ns for each in links)
        return replace(
            network,
            bandwidth_bits_s=slowest,
            latency_ns=2 * latest,
            host_links=() if self.alike else tuple(links),
        )

    @property
    def bandwidth_text(self) -> str:
        low, high = (f"{each:.3g}" for each in (min(self.gbit_s), max(self.gbit_s)))
        if low == high:
            return f"{low} Gbit/s of values for every host, each way"
        slowest = self.gbit_s.index(min(self.gbit_s))
        return f"{low} to {high} Gbit/s of values; host {slowest} has the slowest link"

    @property
    def latency_text(self) -> str:
        of_hosts = sorted(self.latency_us)
        low, high = (f"{sum(two):.3g}" for two in (of_hosts[:2], of_hosts[-2:]))
        return f"{low if low == high else f'{low} to {high}'} us from host to host"

    @property
    def narrow_text(self) -> str | None:
        """What is taken of a pair that hosts' links do not explain."""
        if self.narrow is None:
            return None
        first, second = self.narrow
        return f"hosts {first} and {second} are slower than with others: their way is taken as a limit of all hosts"


def _latencies_us(pairs: Mapping[Pair, PairLink], hosts: int) -> list[float]:
    """Of each host's link: those whose sums come nearest to the pairs'; equal ones where the pairs are about equal."""
    measured = [each.latency_us for each in pairs.values()]
    if max(measured) <= LATE * min(measured):
        return [median(measured) / 2] * hosts
    sums = np.zeros((len(pairs), hosts))
    for row, pair in enumerate(pairs):
        sums[row, list(pair)] = 1
    found = np.linalg.lstsq(sums, np.array(measured), rcond=None)[0]
    return [max(0.0, float(each)) for each in found]
