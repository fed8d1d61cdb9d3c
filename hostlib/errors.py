"""Errors of the host side.

HostlibError
├── UnknownNameError    a mechanism, strategy, model or dtype that does not exist; names the legal ones
├── QuantityError       a bandwidth, size or time that is not one
├── ModelError          a model that cannot be made, or does not take what it is given
│   └── ContentsError   one whose forward pass decides by what is in its tensors
├── ScheduleError       a schedule that is not an all-reduce, or deadlocks; names node and piece
│   └── OperationError  one whose operations are none; names node and operation
├── SpecError           a mechanism or strategy that is not declared as it must be; names the file
├── JoinError           the controller is not there, or refused the rank
├── MissingRankError    a rank died or stalled; `ranks` says which
├── FabricError         the switch does not answer, though all ranks are alive
└── RunError            a training run that could not be started or did not end well
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

ENDED_EARLY = "ended before the others"  # said of a rank by another: its own words say more


class HostlibError(Exception):
    """One line that says what is wrong and what is legal.

    Attributes:
        FIELDS: what beside the line goes with it from process to process, by name: its type, or its items'.
    """

    FIELDS: ClassVar[dict[str, type]] = {}

    def as_json(self) -> dict[str, Any]:
        """What another process can make the same error of; see `from_json`."""
        kinds = [kind.__name__ for kind in type(self).__mro__ if issubclass(kind, HostlibError)]
        return {"kinds": kinds, "line": str(self), "fields": {name: getattr(self, name) for name in self.FIELDS}}

    def restated(self, line: str) -> HostlibError:
        """The same error in other words."""
        return _made(type(self), line, {name: getattr(self, name) for name in self.FIELDS})


def from_json(record: Any) -> HostlibError:
    """The error that another process had: of the same type where this one has it, else of its nearest base.

    Nothing is made but errors of this tree, and of fields only those that the type has, so anybody may have sent it.

    Raises:
        ValueError: it is no record of an error.
    """
    try:
        kinds, line, fields = record["kinds"], record["line"], record["fields"]
        known = {kind.__name__: kind for kind in _tree(HostlibError)}
        kind = next((known[name] for name in kinds if name in known), HostlibError)
        wanted = {name: fields[name] for name in kind.FIELDS}
    except (KeyError, TypeError) as error:
        raise ValueError(f"no record of an error: {record!r:.100}") from error
    for name, value in wanted.items():
        items = value if isinstance(value, list) else [value]
        if any(type(item) is not kind.FIELDS[name] for item in items):
            raise ValueError(f"no record of an error: {name} is {value!r:.100}")
    return _made(kind, str(line), wanted)


def _tree(kind: type[HostlibError]) -> Iterator[type[HostlibError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


def _made(kind: type[HostlibError], line: str, fields: dict[str, Any]) -> HostlibError:
    error = kind.__new__(kind, line)  # Not by __init__, which makes the line itself.
    for name, value in fields.items():
        setattr(error, name, value)
    return error


class UnknownNameError(HostlibError):
    """Something was asked for by a name that nothing has."""

    FIELDS: ClassVar[dict[str, type]] = {"kind": str, "name": str, "legal": str}

    def __init__(self, kind: str, name: str, legal: Iterable[str]) -> None:
        self.kind, self.name, self.legal = kind, name, sorted(legal)
        super().__init__(f"unknown {kind} {name!r}; legal are {', '.join(self.legal) or 'none'}")


class QuantityError(HostlibError):
    """A number with a unit that cannot be read."""


class ModelError(HostlibError):
    """A model that cannot be made or looked at."""


class ContentsError(ModelError):
    """A model whose forward pass cannot be had without contents."""


class ScheduleError(HostlibError):
    """A schedule that must not run."""


class OperationError(ScheduleError):
    """A schedule that nobody can read."""


class SpecError(HostlibError):
    """A mechanism or strategy that cannot be registered."""


class JoinError(HostlibError):
    """A rank could not join its job."""


class MissingRankError(HostlibError):
    """One or more ranks show no sign of life; `ranks` has their numbers."""

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
