"""The transports by name: each module of hostlib/transport/ called NAME_transport.

Such a module loads torch only on use, and has:

- SUMMARY: what carries the messages, in a few words.
- STARTED_BY: the command that must start its processes and takes `-n N` as mpirun does; None if torchrun or `hostlib
train` starts them.
- environment(): a context manager of the LaunchEnvironment of such a process, with the connector in it.

The rest of netfold uses only its Transport and its Connector (hostlib/transport/transport.py).
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import AbstractContextManager
from typing import Protocol, cast

from hostlib import transport
from hostlib.errors import SpecError, UnknownNameError
from hostlib.system.plugins import require_name
from hostlib.transport.launch_environment import LaunchEnvironment

SUFFIX = "_transport"
DEFAULT_TRANSPORT = "gloo"


class TransportModule(Protocol):
    """The attributes of a transport's module."""

    @property
    def SUMMARY(self) -> str: ...

    @property
    def STARTED_BY(self) -> str | None: ...

    def environment(self) -> AbstractContextManager[LaunchEnvironment]: ...


def transport_names() -> tuple[str, ...]:
    """The transports' names, found without importing them."""
    names = (module.name for module in pkgutil.iter_modules(transport.__path__))
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def require_transport(name: str) -> None:
    """Check a transport's name. Raises UnknownNameError: there is no such transport."""
    if name not in transport_names():
        raise UnknownNameError("transport", name, transport_names())


def find_transport(name: str) -> TransportModule:
    """Import a transport by its name.

    Raises:
        UnknownNameError: there is no such transport.
        SpecError: its module is incomplete.
    """
    require_transport(name)
    module = importlib.import_module(f"{transport.__name__}.{name}{SUFFIX}")
    try:
        require_name(name, getattr(module, "SUMMARY", None))
        started_by = getattr(module, "STARTED_BY", "")
        if started_by is not None and (not isinstance(started_by, str) or not started_by):
            raise SpecError(f"STARTED_BY must be a command or None, not {started_by!r}")
        if not callable(getattr(module, "environment", None)):
            raise SpecError("environment must be a function")
    except SpecError as error:
        raise SpecError(f"{module.__file__} is not a transport: {error}") from None
    return cast(TransportModule, module)


def start_line(name: str, processes: int) -> str:
    """The command line that starts a transport's processes. Raises what find_transport raises."""
    starter = find_transport(name).STARTED_BY
    begun = "hostlib train" if starter is None else f"{starter} -n {processes} python -m hostlib.train"
    return f"{begun} --transport {name}"


def describe_transports() -> str:
    """Describe each transport and the command that must start its processes, in one line."""
    found = {name: find_transport(name) for name in transport_names()}
    return "; ".join(
        f"{name}: {each.SUMMARY}" + (f" (under {each.STARTED_BY})" if each.STARTED_BY else "")
        for name, each in found.items()
    )
