"""Errors of the simulation room.

SimulationError
├── ArchitectureError   a network that does not exist, or does not fit its input
├── NetworkError        a topology that cannot be
├── ExperimentError     a file that is no experiment
└── ClusterError        a sweep's cluster that is not there
"""

from __future__ import annotations


class SimulationError(Exception):
    """One line that says what is wrong and what is legal."""


class ArchitectureError(SimulationError):
    """No such network."""


class NetworkError(SimulationError):
    """A topology that cannot be, or that a schedule does not fit."""


class ClusterError(SimulationError):
    """The engine of a sweep on many machines is missing or does not answer."""


class ExperimentError(SimulationError):
    """A file that is no experiment; one line that names file and key."""
