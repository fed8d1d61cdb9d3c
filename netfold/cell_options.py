"""The options of a cell, from the arguments of netfold.predict and netfold.ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Arguments that say which cells there are; all others are those of simulation/commands/options.py by name.
OF_CELLS = ("model", "mechanism", "trace", "size", "bandwidth")


def cell_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options among a call's arguments, with the command line's values."""
    options = {name: value for name, value in arguments.items() if name not in OF_CELLS}
    stragglers = arguments["stragglers"] or {}
    return {**options, "stragglers": tuple(f"{rank}={factor}" for rank, factor in stragglers.items())}
