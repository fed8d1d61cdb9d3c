"""Errors of the simulation room.

SimulationError
├── ArchitectureError   an unknown network, or one that does not fit its input
├── NetworkError        an impossible topology
├── ExperimentError     an invalid experiment file
└── ClusterError        a sweep's cluster that is missing or does not answer
"""

from __future__ import annotations


class SimulationError(Exception):
    """An error whose message is one line that says what is wrong and what is legal."""


class ArchitectureError(SimulationError):
    """An unknown network, or one that does not fit its input."""


class NetworkError(SimulationError):
    """An impossible topology, or one that a schedule does not fit."""


class ClusterError(SimulationError):
    """A sweep's cluster that is missing or does not answer."""


class ExperimentError(SimulationError):
    """An invalid experiment file; the message names file and key."""
