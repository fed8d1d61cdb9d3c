"""Errors of the engine's sockets, as netfold's own: one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hostlib.errors import RunError


@contextmanager
def socket_errors() -> Iterator[None]:
    """Raise as RunError what the system, or a variable of the environment, does not let sockets do."""
    try:
        yield
    except OSError as error:
        raise RunError(str(error)) from error
    except ValueError as error:
        if not str(error).startswith("NETFOLD_"):
            raise  # a defect, whose traceback is wanted
        raise RunError(str(error)) from error
