"""Errors of the controller.

ControllerError         (status: the HTTP code that the API answers with)
├── ArtifactError       a compiled P4 program is missing or does not match its lock
├── SwitchError         the switch did not start, is gone, or refused a write
│   └── ElectionError   the switch has another controller
├── RequestError        a rank's request was refused
│   └── ShortError      the fabric, or a quota, has no room for a job now
└── StateError          a command does not fit what is running, or the state cannot be read or written
    └── DeposedError    another controller of the same state is the primary
"""

from __future__ import annotations


class ControllerError(Exception):
    """An error whose message is one line that says what is wrong and what is legal.

    Attributes:
        status: the HTTP code of a request that it refuses.
        retry_after_s: when the same request may succeed, if that is known.
    """

    status = 500
    retry_after_s: int | None = None


class ArtifactError(ControllerError):
    """A compiled P4 program that cannot be used."""


class SwitchError(ControllerError):
    """A switch that cannot be used."""

    status = 503


class ElectionError(SwitchError):
    """A switch whose primary is another controller, or that lets this one have no stream.

    Attributes:
        lasting: whether trying again is of no use.
    """

    def __init__(self, message: str, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


class RequestError(ControllerError):
    """A refused request."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ShortError(RequestError):
    """There is no room for a job now; it may wait in the queue."""

    def __init__(self, message: str) -> None:
        super().__init__(503, message)


class StateError(ControllerError):
    """A command that does not fit what is running, or state that cannot be read or written."""

    status = 503


class DeposedError(StateError):
    """Another controller of the same state directory is the primary.

    Attributes:
        primary: its address; empty if nobody is.
    """

    retry_after_s = 1

    def __init__(self, primary: str) -> None:
        which = f"the primary is {primary}" if primary else "there is no primary at the moment, try again"
        super().__init__(f"this controller is a standby: {which}")
        self.primary = primary
