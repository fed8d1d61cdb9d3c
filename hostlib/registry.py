"""The mechanisms by name: whatever file of hostlib/mechanisms/ registers one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hostlib import mechanisms
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.schedule import SWITCH, Schedule

STRATEGIES = {
    "wfbp": "wait-free backpropagation: buckets are summed while the backward pass goes on",
    "bsp": "everything is summed in one piece after the backward pass",
}
DEFAULT_STRATEGY = "wfbp"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A registered mechanism; `build` is None for a library's own."""

    name: str
    summary: str
    build: Callable[[int], Schedule] | None

    def schedule(self, world_size: int) -> Schedule:
        """Its schedule for so many ranks.

        Raises:
            HostlibError: a library yardstick has none.
        """
        if self.build is None:
            raise HostlibError(f"{self.name} is a library's own collective and has no schedule")
        return self.build(world_size)

    @property
    def needs_fabric(self) -> bool:
        return self.build is not None and SWITCH in self.build(2).nodes


@dataclass(frozen=True, slots=True)
class Choice:
    """What `--mechanism` says: a strategy and a mechanism."""

    strategy: str
    mechanism: Mechanism

    def __str__(self) -> str:
        return self.mechanism.name if self.strategy == DEFAULT_STRATEGY else f"{self.strategy}/{self.mechanism.name}"


@cache
def registered() -> dict[str, Mechanism]:
    """All mechanisms, by name."""
    found = {}
    for module_info in pkgutil.iter_modules(mechanisms.__path__):
        module = importlib.import_module(f"{mechanisms.__name__}.{module_info.name}")
        found[module.NAME] = Mechanism(module.NAME, module.SUMMARY, getattr(module, "schedule", None))
    return found


def find(name: str) -> Mechanism:
    """A mechanism by name.

    Raises:
        UnknownNameError: there is none; names the legal ones.
    """
    if name not in registered():
        raise UnknownNameError("mechanism", name, registered())
    return registered()[name]


def choose(text: str) -> Choice:
    """`ring`, or `bsp/ring`: a bare mechanism means wfbp.

    Raises:
        UnknownNameError: no such strategy or mechanism.
    """
    strategy, slash, name = text.partition("/")
    if not slash:
        return Choice(DEFAULT_STRATEGY, find(text))
    if strategy not in STRATEGIES:
        raise UnknownNameError("strategy", strategy, STRATEGIES)
    return Choice(strategy, find(name))
