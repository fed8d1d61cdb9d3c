"""The options of a cell, from the arguments of netfold.predict and netfold.ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hostlib.errors import UnknownNameError
from hostlib.protocol.framing import FRAMINGS
from simulation.experiments.scenario import SEMANTICS
from simulation.simulator.play import Order

# Arguments that say which cells there are; all others are those of simulation/commands/options.py by name.
OF_CELLS = ("model", "mechanism", "trace", "size", "bandwidth")

CHOICES: dict[str, tuple[Any, ...]] = {
    "semantics": (None, *SEMANTICS),
    "framing": tuple(FRAMINGS),
    "barrier": ("global", "none"),
    "order": tuple(each.value for each in Order),
    "pipelined": (None, "yes", "no"),
}


def cell_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options among a call's arguments, with the command line's values.

    Raises:
        UnknownNameError: one is not among its choices.
    """
    for name, legal in CHOICES.items():
        if arguments[name] not in legal:
            raise UnknownNameError(name, arguments[name], map(str, legal))
    options = {name: value for name, value in arguments.items() if name not in OF_CELLS}
    stragglers = arguments["stragglers"] or {}
    return {**options, "stragglers": tuple(f"{rank}={factor}" for rank, factor in stragglers.items())}
