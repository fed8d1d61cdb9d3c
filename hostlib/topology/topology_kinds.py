"""The kinds of topology by name: whatever module of hostlib/topology/builtin/ declares one.

A module has a NAME, a SUMMARY, and a Table: the keys of its [topology] and, by its method, the network that they mean.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from hostlib.topology import builtin
from hostlib.topology.topology import Topology, TopologyError
from hostlib.topology.topology_table import TopologyTable, validated


@cache
def kinds() -> dict[str, type[TopologyTable]]:
    """All tables by their kind's name."""
    found: dict[str, type[TopologyTable]] = {}
    for info in pkgutil.iter_modules(builtin.__path__):
        module = importlib.import_module(f"{builtin.__name__}.{info.name}")
        table = getattr(module, "Table", None)
        if (
            not isinstance(table, type)
            or not issubclass(table, TopologyTable)
            or not isinstance(getattr(module, "NAME", None), str)
        ):
            raise TopologyError(f"{module.__file__} is no kind of topology: it needs NAME, SUMMARY and Table")
        found[module.NAME] = table
    return found


def declare(table: Mapping[str, Any], workers: int, servers: int = 0, rate_bits_s: float | None = None) -> Topology:
    """The network that a TOML table says (docs/topology.md), with so many hosts.

    Args:
        rate_bits_s: of a host's cable, where the table does not say.

    Raises:
        TopologyError: an unknown key, a value of the wrong type, or see Topology.
    """
    kind = table.get("kind", "star")
    if not isinstance(kind, str) or kind not in kinds():
        raise TopologyError(f"topology: there is no kind {kind!r}; there are {', '.join(kinds())}")
    model = validated(f"topology of kind {kind}", kinds()[kind], dict(table))
    return model.topology(workers, servers, rate_bits_s)
