"""The strategies by name: whatever file of hostlib/strategies/ registers one. Torch-free.

Such a file has NAME and SUMMARY; trainer(setting[, options]) -> Trainer (hostlib.training.setting), which imports what
needs torch; and plan(trace, situation[, options]) -> Plan (hostlib.plan), what it makes of a model's trace. It may have:

- MECHANISM: what a bare strategy sums with, its paper's.
- Options: a frozen dataclass of what may follow its name, `name:option=value`, each with a default.
- servers(options) -> int: processes of its own, beside workers and the mechanism's servers, and serve(setting, number[,
  options]), what they do.
- refusal(mechanism) -> str | None: why it cannot go with a mechanism.
- EXACT = False: its steps are by intent not those of one process that has all ranks' examples, rounding apart; its weights
  are still the same on every rank.
- OWN_MESSAGES = True: not all of it goes by the mechanism.
- SHARES_HOSTS = True: its servers live on the hosts of the mechanism's, where there are any; SHARES_WORKERS_HOSTS = True:
  also where those are the workers'. An option `colocated` has them live with the workers whatever the mechanism.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hostlib import strategies
from hostlib.errors import HostlibError, UnknownNameError
from hostlib.layers import LayerInfo
from hostlib.plan import Plan, Situation
from hostlib.registry import Mechanism, describe_option, find, option_values, registered
from hostlib.schedule import server, worker
from hostlib.trace import Trace

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

    @property
    def needs_fabric(self) -> bool:
        """Whether its own messages go through the fabric's program."""
        asked: Callable[..., bool] | None = getattr(self.module, "needs_fabric", None)
        return asked is not None and asked(self.options)

    @property
    def own_messages(self) -> bool:
        """Whether not all of it goes by the mechanism."""
        return getattr(self.module, "OWN_MESSAGES", False)

    @property
    def shares_hosts(self) -> bool:
        """Whether its servers live where the mechanism's do, if those have hosts of their own."""
        return getattr(self.module, "SHARES_HOSTS", False)

    @property
    def shares_workers_hosts(self) -> bool:
        """Whether they do if those live where workers do."""
        return getattr(self.module, "SHARES_WORKERS_HOSTS", False)

    @property
    def colocated(self) -> bool:
        """Whether its servers live where workers do."""
        return getattr(self.options, "colocated", False)

    def plan(self, trace: Trace, situation: Situation) -> Plan:
        """What it makes of a model's trace.

        Raises:
            HostlibError: more would have to be known of the model.
        """
        return self.module.plan(trace, situation, *self._told())  # type: ignore[no-any-return]

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
    chosen = option_values(plain, words, kinds)
    return Strategy(name, plain, strategy.summary, type(strategy.options)(**chosen), strategy.module)


def describe_options(strategy: Strategy) -> list[str]:
    """Each of its options with its default and what else is legal; see hostlib.registry.describe_option."""
    if strategy.options is None:
        return []
    kinds = typing.get_type_hints(type(strategy.options))
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = fields(strategy.options)
    return [
        describe_option(inspect.Parameter(f.name, keyword, default=f.default, annotation=kinds[f.name]))
        for f in options
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """What `--mechanism` says: a strategy and a mechanism."""

    strategy: Strategy
    mechanism: Mechanism

    @property
    def servers(self) -> int:
        """Processes beside the workers: the mechanism's servers, then the strategy's."""
        return self.mechanism.servers + self.strategy.servers

    @property
    def needs_fabric(self) -> bool:
        return self.mechanism.needs_fabric or self.strategy.needs_fabric

    @property
    def server_hosts(self) -> tuple[str, ...]:
        """Where each server lives, as schedules call it. A strategy's may share the hosts of the mechanism's."""
        theirs, own = self.mechanism.servers, self.strategy.servers
        shared = self.strategy.shares_workers_hosts and self.mechanism.chosen.get("colocated")
        if shared or self.strategy.colocated:
            return (*map(server, range(theirs)), *map(worker, range(own)))
        first = 0 if self.strategy.shares_hosts else theirs
        return tuple(map(server, (*range(theirs), *range(first, first + own))))

    @property
    def hosts(self) -> int:
        """How many hosts servers have beside the workers'."""
        return len({host for host in self.server_hosts if host.startswith("server")})

    def require_workers(self, workers: int) -> None:
        """Raises HostlibError: servers are to share hosts with more workers than there are."""
        sharing = len([host for host in self.server_hosts if host.startswith("worker")])
        if sharing > workers:
            raise HostlibError(f"{self}: {sharing} servers cannot share the hosts of {workers} workers")

    def plan(self, trace: Trace, layers: tuple[LayerInfo, ...], workers: int, batch: int) -> Plan:
        """What one iteration of a model is.

        Args:
            layers: of the model; empty where they are not known.
            batch: examples of a worker.

        Raises:
            HostlibError: see Strategy.plan and require_workers.
        """
        self.require_workers(workers)
        own = self.server_hosts[self.mechanism.servers :]
        return self.strategy.plan(trace, Situation(str(self), layers, workers, batch, self.mechanism, own))

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
