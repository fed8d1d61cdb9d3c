"""The kinds of topology by name: each module of hostlib/topology/builtin/ is one.

A module has a NAME, a SUMMARY of one line, and a Table: the keys of its [topology] and a method that makes the network.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hostlib.errors import SpecError
from hostlib.system.plugins import require_name
from hostlib.topology import builtin
from hostlib.topology.topology import Topology, TopologyError
from hostlib.topology.topology_table import DEFAULT_KIND, TopologyTable, keys_of, validated


@dataclass(frozen=True, slots=True)
class TopologyKind:
    """A kind of topology.

    Attributes:
        name: the value of `kind` in [topology].
        summary: what it is, in one line.
        table: its keys, and how they become a network.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    summary: str
    table: type[TopologyTable]

    def __post_init__(self) -> None:
        require_name(self.name, self.summary)
        if not isinstance(self.table, type) or not issubclass(self.table, TopologyTable):
            raise SpecError(f"Table must be a class of TopologyTable's, not {self.table!r}")

    @property
    def keys(self) -> list[str]:
        """The keys of its [topology] other than `kind`: its own, then those of every kind."""
        return [name for name in keys_of(self.table) if name != "kind"]


@cache
def kinds() -> dict[str, TopologyKind]:
    """All kinds, by name.

    Raises:
        TopologyError: a module is invalid; the message names it.
    """
    found: dict[str, TopologyKind] = {}
    for info in pkgutil.iter_modules(builtin.__path__):
        module = importlib.import_module(f"{builtin.__name__}.{info.name}")
        where = f"{module.__file__} is not a kind of topology"
        if not all(hasattr(module, name) for name in ("NAME", "SUMMARY", "Table")):
            raise TopologyError(f"{where}: it needs NAME, SUMMARY and Table")
        try:
            kind = TopologyKind(module.NAME, module.SUMMARY, module.Table)
        except SpecError as error:
            raise TopologyError(f"{where}: {error}") from None
        if kind.name in found:
            raise TopologyError(f"{where}: the name {kind.name} is taken by another")
        found[kind.name] = kind
    return found


def declare(table: Mapping[str, Any], workers: int, servers: int = 0, rate_bits_s: float | None = None) -> Topology:
    """Make the network of a TOML table (docs/topology.md) with given numbers of hosts.

    Args:
        rate_bits_s: of a host's cable, if the table does not set it.

    Raises:
        TopologyError: an unknown key, a value of the wrong type, or see Topology.
    """
    kind = table.get("kind", DEFAULT_KIND)
    if not isinstance(kind, str) or kind not in kinds():
        raise TopologyError(f"topology: unknown kind {kind!r}; legal are {', '.join(kinds())}")
    model = validated(f"topology of kind {kind}", kinds()[kind].table, dict(table))
    return replace(model.topology(workers, servers, rate_bits_s), elements=model.elements)
