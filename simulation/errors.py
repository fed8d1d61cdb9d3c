"""Errors of the simulation room.

SimulationError
└── QuantityError       a bandwidth, size or time that is not one
"""

from __future__ import annotations


class SimulationError(Exception):
    """One line that says what is wrong and what is legal."""


class QuantityError(SimulationError):
    """A number with a unit that cannot be read."""
