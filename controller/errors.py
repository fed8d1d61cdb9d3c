"""Errors of the controller.

ControllerError         (status: the HTTP code that the API answers with)
├── ArtifactError       a compiled P4 program is missing or does not fit its lock
├── SwitchError         the switch did not start, is gone, or refused a write
├── RequestError        a rank asked for something it cannot have
└── StateError          start, status or stop met a state that does not allow it
"""

from __future__ import annotations


class ControllerError(Exception):
    """One line that says what is wrong and what is legal."""

    status = 500


class ArtifactError(ControllerError):
    """A compiled P4 program cannot be used."""


class SwitchError(ControllerError):
    """The switch cannot be used."""

    status = 503


class RequestError(ControllerError):
    """A request that is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StateError(ControllerError):
    """The command does not fit what is running."""
