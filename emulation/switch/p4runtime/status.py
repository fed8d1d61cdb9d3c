"""Refusals of P4Runtime requests, each with the gRPC code required by the specification."""

from __future__ import annotations

import grpc

from emulation.errors import EmulationError


class RequestError(EmulationError):
    """A refused P4Runtime request."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.INVALID_ARGUMENT, message)


def missing(message: str) -> RequestError:
    return RequestError(grpc.StatusCode.NOT_FOUND, message)
