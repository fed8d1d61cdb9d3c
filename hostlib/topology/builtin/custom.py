"""custom: a tree of one's own, whose switches and links are named one by one."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hostlib.errors import QuantityError
from hostlib.text import units
from hostlib.topology.topology import Cable, Topology, TopologyError
from hostlib.topology.topology_table import Quality, TopologyTable, validated

NAME = "custom"
LARGEST = 1e12  # times a host's rate
SUMMARY = "a tree of one's own: switches, parents first, and every link"


class LinkTable(Quality):
    """A table of [[topology.links]].

    Attributes:
        lower: a node's name, or several.
        rate: as `25gbit`, or so many times a host's.
    """

    lower: Any = None
    upper: Any = None
    rate: Any = 1.0

    def cables(self, quality: dict[str, Any], host_bits_s: float | None) -> list[Cable]:
        """
        Args:
            quality: what holds where this table says nothing.

        Raises:
            TopologyError: it is no link.
        """
        lowers = self.lower if isinstance(self.lower, list) else [self.lower]
        if not isinstance(self.upper, str) or not all(isinstance(name, str) for name in lowers):
            raise TopologyError("topology: a link has lower, a node's name or several, and upper, a switch's name")
        where = f"topology: link {lowers[0] if lowers else ''}-{self.upper}"
        rate_bits_s = self._rate_bits_s(where, host_bits_s)
        return [Cable(name, self.upper, rate_bits_s, **{**quality, **self.options()}) for name in lowers]

    def _rate_bits_s(self, where: str, host_bits_s: float | None) -> float | None:
        if isinstance(self.rate, str):
            try:
                return units.bandwidth(self.rate, "rate")
            except QuantityError as error:
                raise TopologyError(f"{where}: {error}") from None
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float):
            raise TopologyError(f"{where}: rate {self.rate!r} is not a number")
        if not 0 < self.rate <= LARGEST:
            raise TopologyError(f"{where}: a rate of {self.rate} times a host's is not above 0")
        return None if host_bits_s is None else host_bits_s * self.rate


class Table(TopologyTable):
    """
    Attributes:
        switches: names, parents first.
        links: each as LinkTable; what one does not say of delay, loss and queue, this table says.
    """

    switches: Any = Field(default_factory=lambda: ["switch"])
    links: Any = Field(default_factory=list)

    def topology(self, workers: int, servers: int, rate_bits_s: float | None) -> Topology:
        if not isinstance(self.switches, list) or not all(isinstance(name, str) for name in self.switches):
            raise TopologyError(f"topology: switches {self.switches!r} is not a list of names")
        if not isinstance(self.links, list) or not all(isinstance(link, dict) for link in self.links):
            raise TopologyError("topology: links is not a list of tables ([[topology.links]])")
        links = [validated("topology: a link", LinkTable, link) for link in self.links]
        cables = [cable for link in links for cable in link.cables(self.options(), rate_bits_s)]
        return Topology(workers, servers, tuple(self.switches), tuple(cables))
