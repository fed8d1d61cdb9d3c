"""custom: a tree whose switches and links are listed one by one."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hostlib.errors import QuantityError
from hostlib.text import units
from hostlib.topology.topology import Cable, Topology, TopologyError
from hostlib.topology.topology_table import Quality, TopologyTable, validated

NAME = "custom"
LARGEST = 1e12  # a multiple of a host's rate
SUMMARY = "a tree of your own: switches, parents first, and every link"


class LinkTable(Quality):
    """A table of [[topology.links]].

    Attributes:
        lower: a node's name, or several.
        rate: as `25gbit`, or a multiple of a host's rate.
        parallel: so many equal cables, of a switch; more than one can be simulated, but not emulated.
    """

    lower: Any = None
    upper: Any = None
    rate: Any = 1.0
    parallel: int = 1

    def cables(self, quality: dict[str, Any], host_bits_s: float | None) -> list[Cable]:
        """Make the table's cables.

        Args:
            quality: defaults for what the table does not set.

        Raises:
            TopologyError: the table does not describe a link.
        """
        lowers = self.lower if isinstance(self.lower, list) else [self.lower]
        if not isinstance(self.upper, str) or not all(isinstance(name, str) for name in lowers):
            raise TopologyError("topology: a link needs lower (one or several node names) and upper (a switch's name)")
        where = f"topology: link {lowers[0] if lowers else ''}-{self.upper}"
        rate_bits_s = self._rate_bits_s(where, host_bits_s)
        options = {**quality, **self.options(), "parallel": self.parallel}
        return [Cable(name, self.upper, rate_bits_s, **options) for name in lowers]

    def _rate_bits_s(self, where: str, host_bits_s: float | None) -> float | None:
        if isinstance(self.rate, str):
            try:
                return units.bandwidth(self.rate, "rate")
            except QuantityError as error:
                raise TopologyError(f"{where}: {error}") from None
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float):
            raise TopologyError(f"{where}: rate {self.rate!r} is not a number")
        if not 0 < self.rate <= LARGEST:
            raise TopologyError(f"{where}: rate must be above 0 times a host's, not {self.rate}")
        return None if host_bits_s is None else host_bits_s * self.rate


class Table(TopologyTable):
    """Keys of a custom topology.

    Attributes:
        switches: names, parents first.
        links: each as LinkTable; this table's delay, loss, queue and mark are the links' defaults.
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
