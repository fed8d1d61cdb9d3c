"""Errors of the host side.

HostlibError
├── UnknownNameError    unknown mechanism, strategy, model or dtype; lists the legal ones
├── QuantityError       not a valid bandwidth, size or time
├── ModelError          a model that cannot be built, or rejects its input
│   └── ContentsError   a model whose forward pass depends on the values in its tensors
├── ScheduleError       a schedule that is not an all-reduce, or deadlocks; names node and piece
│   └── OperationError  a schedule with an invalid operation; names node and operation
├── SpecError           an invalid declaration of a mechanism or strategy; names the file
├── JoinError           the controller does not answer, or refused the rank
├── MissingRankError    a rank died or stalled; `ranks` says which
├── FabricError         the switch does not answer, though all ranks are alive
└── RunError            a training run that could not start or failed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

ENDED_EARLY = "ended before the others"  # what other ranks report of a rank that failed; its own error says more


class HostlibError(Exception):
    """An error whose message is one line that says what is wrong and what is legal.

    Attributes:
        FIELDS: name -> type (or item type) of the attributes that are sent along with the message between processes.
    """

    FIELDS: ClassVar[dict[str, type]] = {}

    def as_json(self) -> dict[str, Any]:
        """Return a JSON record from which another process can rebuild the error; see `from_json`."""
        kinds = [kind.__name__ for kind in type(self).__mro__ if issubclass(kind, HostlibError)]
        return {"kinds": kinds, "line": str(self), "fields": {name: getattr(self, name) for name in self.FIELDS}}

    def restated(self, line: str) -> HostlibError:
        """Return the same error with another message."""
        return _made(type(self), line, {name: getattr(self, name) for name in self.FIELDS})


def from_json(record: Any) -> HostlibError:
    """Rebuild an error that another process raised, as its own type if this process has it, else as the nearest base.

    Only errors of this hierarchy and the fields that they declare are created, so records from untrusted senders are
    safe.

    Raises:
        ValueError: the record is not one of an error.
    """
    try:
        kinds, line, fields = record["kinds"], record["line"], record["fields"]
        known = {kind.__name__: kind for kind in _tree(HostlibError)}
        kind = next((known[name] for name in kinds if name in known), HostlibError)
        wanted = {name: fields[name] for name in kind.FIELDS}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record of an error: {record!r:.100}") from error
    for name, value in wanted.items():
        items = value if isinstance(value, list) else [value]
        if any(type(item) is not kind.FIELDS[name] for item in items):
            raise ValueError(f"not a record of an error: {name} is {value!r:.100}")
    return _made(kind, str(line), wanted)


def _tree(kind: type[HostlibError]) -> Iterator[type[HostlibError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def _made(kind: type[HostlibError], line: str, fields: dict[str, Any]) -> HostlibError:
    error = kind.__new__(kind, line)  # Bypass __init__, which composes the message itself.
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class UnknownNameError(HostlibError):
    """An unknown name; the message lists the legal ones."""

    FIELDS: ClassVar[dict[str, type]] = {"kind": str, "name": str, "legal": str}

    def __init__(self, kind: str, name: str, legal: Iterable[str]) -> None:
        self.kind, self.name, self.legal = kind, name, sorted(legal)
        super().__init__(f"unknown {kind} {name!r}; legal are {', '.join(self.legal) or 'none'}")


class QuantityError(HostlibError):
    """A quantity with a unit that cannot be parsed."""


class ModelError(HostlibError):
    """A model that cannot be built or inspected."""


class ContentsError(ModelError):
    """A model that cannot be traced without real inputs."""


class ScheduleError(HostlibError):
    """An invalid schedule."""


class OperationError(ScheduleError):
    """A schedule with an invalid operation."""


class SpecError(HostlibError):
    """An invalid specification of a mechanism or strategy."""


class JoinError(HostlibError):
    """A rank could not join its job."""


class MissingRankError(HostlibError):
    """One or more ranks give no sign of life; `ranks` has their numbers."""

    FIELDS: ClassVar[dict[str, type]] = {"ranks": int}

    def __init__(self, ranks: list[int], waited_s: float, first_server: int | None = None) -> None:
        self.ranks = ranks
        servers = [] if first_server is None else [rank - first_server for rank in ranks if rank >= first_server]
        workers = ranks[: len(ranks) - len(servers)]
        parts = [
            f"{kind}{'' if len(some) == 1 else 's'} {', '.join(map(str, some))}"
            for kind, some in (("rank", workers), ("server", servers))
            if some
        ]
        verb = "is" if len(ranks) == 1 else "are"
        super().__init__(f"{' and '.join(parts)} {verb} missing: no sign of life, the others waited {waited_s:.0f} s")


class FabricError(HostlibError):
    """The switch does not answer."""


class RunError(HostlibError):
    """A training run failed."""
