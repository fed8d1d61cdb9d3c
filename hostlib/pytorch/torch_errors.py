"""Errors as torch.distributed has them: RuntimeErrors, of its class DistBackendError, that are still netfold's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch.distributed as dist

from hostlib.errors import HostlibError

BACKEND_ERROR: type[RuntimeError] = getattr(dist, "DistBackendError", RuntimeError)


@cache
def _kind(kind: type[Exception]) -> type[Exception]:
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, BACKEND_ERROR), named)


def torch_error(error: HostlibError | OverflowError) -> Exception:
    """The same error, which `except RuntimeError` and `except torch.distributed.DistBackendError` catch, too."""
    if isinstance(error, BACKEND_ERROR):
        return error
    kind = _kind(cast(Any, type(error)))
    made = kind.__new__(kind, *error.args)  # Bypass __init__, which composes the message itself.
    made.__dict__.update(error.__dict__)
    return made


@contextmanager
def torch_errors() -> Iterator[None]:
    """Raise netfold's errors, and refused sums, as torch's."""
    try:
        yield
    except (HostlibError, OverflowError) as error:
        raised = torch_error(error)
        if raised is error:
            raise
        raise raised from error.__cause__
