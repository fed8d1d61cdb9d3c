"""The transports by name: whatever module of hostlib/transport/ is called NAME_transport.

Such a module loads torch only when it is used, and has:

- STARTED_BY: the command that must start its processes; None where torchrun or `hostlib train` does.
- environment(): a context manager of the LaunchEnvironment of such a process, with the connector in it.

Another transport is another such module: its Transport and its Connector (hostlib/transport/transport.py) are all that
the rest of netfold sees of it.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import AbstractContextManager
from typing import Protocol, cast

from hostlib import transport
from hostlib.errors import UnknownNameError
from hostlib.transport.launch_environment import LaunchEnvironment

SUFFIX = "_transport"
DEFAULT_TRANSPORT = "gloo"


class TransportModule(Protocol):
    """What such a module has."""

    @property
    def STARTED_BY(self) -> str | None: ...

    def environment(self) -> AbstractContextManager[LaunchEnvironment]: ...


def transport_names() -> tuple[str, ...]:
    """All there are; none of them is loaded."""
    names = (module.name for module in pkgutil.iter_modules(transport.__path__))
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def require_transport(name: str) -> None:
    """Raises UnknownNameError: there is no such transport."""
    if name not in transport_names():
        raise UnknownNameError("transport", name, transport_names())


def find_transport(name: str) -> TransportModule:
    """A transport by its name.

    Raises:
        UnknownNameError: there is no such transport.
    """
    require_transport(name)
    return cast(TransportModule, importlib.import_module(f"{transport.__name__}.{name}{SUFFIX}"))
