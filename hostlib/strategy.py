"""The strategies by name: whatever file of hostlib/strategies/ registers one. Torch-free.

Such a file has NAME and SUMMARY, and trainer(setting[, options]) -> Trainer (hostlib.training.setting), which imports what
needs torch. It may have:

- MECHANISM: what a bare strategy sums with, its paper's.
- Options: a frozen dataclass of what may follow its name, `name:option=value`, each with a default.
- servers(options) -> int: processes of its own, beside workers and the mechanism's servers, and serve(setting, number[,
  options]), what they do.
- refusal(mechanism) -> str | None: why it cannot go with a mechanism.
- EXACT = False: its steps are by intent not those of one process that has all ranks' examples, rounding apart; its weights
  are still the same on every rank.
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hostlib import strategies
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.registry import Mechanism, find, option_value, registered

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

DEFAULT_STRATEGY = "wfbp"
DEFAULT_MECHANISM = "inagg+mcast"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A registered strategy with its options.

    Attributes:
        name: as it was asked for, options included.
        plain: its file's NAME.
        options: a value of its file's Options; None where it has none.
    """

    name: str
    plain: str
    summary: str
    options: Any
    module: ModuleType

    @property
    def mechanism(self) -> str:
        """What it sums with when nothing else is said."""
        return getattr(self.module, "MECHANISM", DEFAULT_MECHANISM)

    @property
    def exact(self) -> bool:
        """Whether its steps are those of one process that has all ranks' examples, rounding apart."""
        return getattr(self.module, "EXACT", True)

    @property
    def servers(self) -> int:
        """How many processes of its own it has, beside workers and the mechanism's servers."""
        count: Callable[..., int] | None = getattr(self.module, "servers", None)
        return 0 if count is None else count(self.options)

    def trainer(self, setting: Setting) -> Trainer:
        """A rank's steps."""
        return self.module.trainer(setting, *self._told())  # type: ignore[no-any-return]

    def serve(self, setting: Setting, number: int) -> None:
        """What its server of a number does, until the workers have ended."""
        self.module.serve(setting, number, *self._told())

    def refusal(self, mechanism: Mechanism) -> str | None:
        """Why it does not go with a mechanism; None when it does."""
        why: Callable[[Mechanism], str | None] | None = getattr(self.module, "refusal", None)
        return None if why is None else why(mechanism)

    def _told(self) -> tuple[Any, ...]:
        return () if self.options is None else (self.options,)


@cache
def registered_strategies() -> dict[str, Strategy]:
    """All strategies with their default options, by name."""
    found = {}
    for module_info in pkgutil.iter_modules(strategies.__path__):
        module = importlib.import_module(f"{strategies.__name__}.{module_info.name}")
        options = getattr(module, "Options", None)
        found[module.NAME] = Strategy(
            module.NAME, module.NAME, module.SUMMARY, None if options is None else options(), module
        )
    return found


@cache
def find_strategy(name: str) -> Strategy:
    """A strategy by its name and options: `hybcomm`, or `ralp:split=fc6`.

    Raises:
        UnknownNameError: there is no such strategy or option; names the legal ones.
        HostlibError: an option's value is not of its kind.
    """
    plain, *words = name.split(":")
    known = registered_strategies()
    if plain not in known:
        raise UnknownNameError("strategy", plain, known)
    strategy = known[plain]
    if not words:
        return strategy
    kinds = {} if strategy.options is None else typing.get_type_hints(type(strategy.options))
    chosen = {}
    for word in words:
        option, equals, value = word.partition("=")
        if option not in kinds:
            raise UnknownNameError(f"option of {plain}", option, kinds)
        chosen[option] = option_value(f"{plain}:{option}", kinds[option], value if equals else "yes")
    return Strategy(name, plain, strategy.summary, type(strategy.options)(**chosen), strategy.module)


def describe_options(strategy: Strategy) -> list[str]:
    """`name=default` of each of its options."""
    return [] if strategy.options is None else [f"{f.name}={f.default}" for f in fields(strategy.options)]


@dataclass(frozen=True, slots=True)
class Choice:
    """What `--mechanism` says: a strategy and a mechanism."""

    strategy: Strategy
    mechanism: Mechanism

    @property
    def servers(self) -> int:
        """Processes beside the workers: the mechanism's servers, then the strategy's."""
        return self.mechanism.servers + self.strategy.servers

    def __str__(self) -> str:
        if self.strategy.name == DEFAULT_STRATEGY:
            return self.mechanism.name
        return f"{self.strategy.name}/{self.mechanism.name}"


def choose(text: str) -> Choice:
    """`ring`, `bsp/ring`, or `ralp`: a bare mechanism means wfbp, a bare strategy its paper's mechanism.

    Raises:
        UnknownNameError: no such strategy or mechanism.
        HostlibError: an option that cannot be, or the two do not go together; names the legal ones.
    """
    first, slash, name = text.partition("/")
    if not slash and first.partition(":")[0] in registered_strategies():
        strategy = find_strategy(first)
        name = strategy.mechanism
    elif not slash:
        return Choice(find_strategy(DEFAULT_STRATEGY), find(text))
    else:
        strategy = find_strategy(first)
    mechanism = find(name)
    if (why := strategy.refusal(mechanism)) is not None:
        legal = ", ".join(sorted(n for n, m in registered().items() if strategy.refusal(m) is None))
        raise HostlibError(f"{strategy.name} does not go with {mechanism.name}: {why}; legal are {legal}")
    return Choice(strategy, mechanism)
