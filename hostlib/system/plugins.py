"""Registries of a folder's modules and other distributions' entry points, each with a SPEC.

One that cannot be registered is reported in one line that names its file or distribution; the others still work.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from hostlib.errors import HostlibError, SpecError, UnknownNameError


class Named(Protocol):
    """A specification with a name."""

    @property
    def name(self) -> str: ...


Spec = TypeVar("Spec", bound=Named)


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry that could not be registered.

    Attributes:
        names: names that refer to it.
        line: what to fix, and where.
    """

    names: tuple[str, ...]
    line: str


@dataclass(frozen=True, slots=True)
class Registry(Generic[Spec]):
    """Registered specifications by name, and the broken ones."""

    specs: dict[str, Spec]
    broken: tuple[Broken, ...]

    def find(self, kind: str, name: str) -> Spec:
        """Find a specification by its name.

        Args:
            kind: what is looked up, for the error.

        Raises:
            SpecError: it exists, but could not be registered.
            UnknownNameError: there is none of this name.
        """
        if name in self.specs:
            return self.specs[name]
        if (broken := self._broken(name)) is not None:
            raise SpecError(broken.line)
        raise UnknownNameError(kind, name, self.specs)

    def knows(self, name: str) -> bool:
        """Whether the name exists, registered or broken."""
        return name in self.specs or self._broken(name) is not None

    def _broken(self, name: str) -> Broken | None:
        return next((each for each in self.broken if _plain(name) in map(_plain, each.names)), None)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a specification may come from.

    Attributes:
        origin: what errors call it.
        load: returns the specification; may raise anything.
    """

    name: str
    origin: str
    load: Callable[[], object]


def require_name(name: object, summary: object) -> None:
    """Check a name and its summary. Raises SpecError: the name is not usable, or the summary is missing."""
    if not isinstance(name, str) or not name or any(mark in ":/," or mark.isspace() for mark in name):
        raise SpecError(f"name must be text without spaces, commas, colons and slashes, not {name!r}")
    if not isinstance(summary, str) or not summary or "\n" in summary:
        raise SpecError(f"summary must be a line of text, not {summary!r}")


def load_registry(
    package: ModuleType, group: str, kind: type[Spec], require: Callable[[Spec], None] = lambda spec: None
) -> Registry[Spec]:
    """Load all specifications of a kind.

    Args:
        package: its modules have one specification each, as SPEC.
        group: the entry-point group of other distributions: a SPEC, or a module that has one.
        require: raises HostlibError for one that must not be registered.
    """
    specs: dict[str, Spec] = {}
    origins: dict[str, str] = {}
    broken: list[Broken] = []
    for source in (*_modules(package), *_plugins(group)):
        names = [source.name]
        try:
            spec = _spec_of(source, kind)
            names.append(spec.name)
            if spec.name in specs:
                raise SpecError(f"the name {spec.name} is taken by {origins[spec.name]}")
            require(spec)
        except HostlibError as error:
            broken.append(Broken(tuple(names), f"{source.origin}: {error}"))
        else:
            specs[spec.name], origins[spec.name] = spec, source.origin
    return Registry(specs, tuple(broken))


def _spec_of(source: Source, kind: type[Spec]) -> Spec:
    try:
        found = source.load()
    except HostlibError:
        raise
    except (Exception, SystemExit) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise SpecError(f"cannot be imported: {type(error).__name__}: {reason}") from error
    if isinstance(found, ModuleType):
        found = getattr(found, "SPEC", None)
    if not isinstance(found, kind):
        have = "nothing of that name" if found is None else f"a {type(found).__name__}"
        raise SpecError(f"must have SPEC, a {kind.__name__}, and has {have}")
    return found


def _modules(package: ModuleType) -> Iterator[Source]:
    """The modules and folders in a package's folder, except hidden ones and those that begin with an underscore."""
    where = package.__name__.replace(".", "/")
    found = {path.name: path for folder in package.__path__ for path in Path(folder).iterdir()}
    for _, path in sorted(found.items()):
        folder = path.is_dir()
        if path.name.startswith((".", "_")) or (folder and not _content(path)):
            continue
        importable = (path / "__init__.py").exists() if folder else path.suffix == ".py"
        origin = f"{where}/{path.name}{'/__init__.py' if folder and importable else ''}"
        module = partial(importlib.import_module, f"{package.__name__}.{path.stem}")
        yield Source(path.stem, origin, module if importable and "." not in path.stem else _stray)


def _content(folder: Path) -> bool:
    """Whether a folder holds anything but Python's caches."""
    return any(path.name != "__pycache__" for path in folder.iterdir())


def _stray() -> object:
    raise SpecError("is no Python module, and does not belong here")


def _plugins(group: str) -> Iterator[Source]:
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        yield Source(point.name, _origin(point), point.load)


def _origin(point: EntryPoint) -> str:
    distribution: Any = point.dist
    whose = "a distribution" if distribution is None else f"{distribution.name} {distribution.version}"
    return f"{whose}, entry point {point.name} = {point.value} of {point.group}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())
