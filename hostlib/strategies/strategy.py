"""Look up strategies by name: those of hostlib/strategies/builtin/ and of other distributions. Torch-free."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import Mechanism, find, registered
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse, server, worker
from hostlib.strategies import builtin
from hostlib.strategies.plan import Plan, PlanContext
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.system.plugins import Broken, Registry, load_registry
from hostlib.text.name_options import describe_option, option_values
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

GROUP = "netfold.strategies"  # the entry-point group for other distributions
DEFAULT_STRATEGY = "wfbp"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A registered strategy with its options; see StrategySpec for its properties.

    Attributes:
        name: as the user gave it, options included.
        options: an instance of its specification's options.
    """

    name: str
    spec: StrategySpec
    options: Any

    @property
    def plain(self) -> str:
        """Its name without options."""
        return self.spec.name

    @property
    def summary(self) -> str:
        return self.spec.summary

    @property
    def mechanism(self) -> str:
        """The mechanism that it sums with by default."""
        return self.spec.mechanism

    @property
    def exact(self) -> bool:
        return self.spec.exact

    @property
    def own_messages(self) -> bool:
        return self.spec.own_messages

    @property
    def shares_hosts(self) -> bool:
        return self.spec.shares_hosts

    @property
    def shares_workers_hosts(self) -> bool:
        return self.spec.shares_workers_hosts

    @property
    def servers(self) -> int:
        """Number of its own processes, in addition to workers and the mechanism's servers."""
        return 0 if self.spec.servers is None else self.spec.servers(self.options)

    @property
    def stages(self) -> int:
        """Number of workers that train one copy of the model together."""
        return 1 if self.spec.stages is None else self.spec.stages(self.options)

    @property
    def needs_fabric(self) -> bool:
        """Whether its own messages use the fabric's program."""
        return self.spec.needs_fabric is not None and self.spec.needs_fabric(self.options)

    @property
    def colocated(self) -> bool:
        """Whether its servers live on the workers' hosts."""
        return self.spec.colocated is not None and self.spec.colocated(self.options)

    def trainer(self, context: TrainerContext) -> Trainer:
        """Make a rank's trainer."""
        return self.spec.trainer(context, self.options)

    def serve(self, context: TrainerContext, number: int) -> None:
        """Run its server of a number until the workers have ended."""
        if self.spec.serve is None:
            raise HostlibError(f"{self.name} has no servers")
        self.spec.serve(context, number, self.options)

    def refusal(self, mechanism: Mechanism) -> str | None:
        """Why it cannot be combined with a mechanism; None if it can."""
        return None if self.spec.refusal is None else self.spec.refusal(mechanism)

    def plan(self, trace: Trace, context: PlanContext) -> Plan:
        """Apply it to a model's trace.

        Raises:
            HostlibError: it needs to know more about the model.
        """
        return self.spec.plan(trace, context, self.options)


def _require_sound(spec: StrategySpec) -> None:
    """Check a specification. Raises HostlibError: its mechanism does not exist, or its default options are refused."""
    find(spec.mechanism)
    spec.options()


@cache
def registry() -> Registry[StrategySpec]:
    """The registered strategies and those that could not be registered."""
    return load_registry(builtin, GROUP, StrategySpec, _require_sound)


def registered_strategies() -> dict[str, Strategy]:
    """All strategies with their default options, by name."""
    return {name: find_strategy(name) for name in registry().specs}


def broken_strategies() -> tuple[Broken, ...]:
    """The strategies that could not be registered."""
    return registry().broken


@cache
def find_strategy(name: str) -> Strategy:
    """Find a strategy by its name and options: `hybcomm`, or `ralp:split=fc6`.

    Raises:
        UnknownNameError: there is no such strategy or option; the message lists the legal ones.
        SpecError: its declaration is invalid; the message names its file.
        HostlibError: an option's value has the wrong type.
    """
    plain, *words = name.split(":")
    spec = registry().find("strategy", plain)
    return Strategy(name, spec, spec.options(**option_values(plain, words, spec.kinds)))


def describe_options(strategy: Strategy) -> list[str]:
    """Each option with its default and legal values; see hostlib.text.name_options.describe_option."""
    kinds, keyword = strategy.spec.kinds, inspect.Parameter.KEYWORD_ONLY
    return [
        describe_option(inspect.Parameter(f.name, keyword, default=f.default, annotation=kinds[f.name]))
        for f in fields(strategy.options)
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """The value of `--mechanism`: a strategy and a mechanism."""

    strategy: Strategy
    mechanism: Mechanism

    @property
    def servers(self) -> int:
        """Number of processes beside the workers: the mechanism's servers, then the strategy's."""
        return self.mechanism.servers + self.strategy.servers

    @property
    def needs_fabric(self) -> bool:
        return self.mechanism.needs_fabric or self.strategy.needs_fabric

    @property
    def multicasts(self) -> bool:
        """Whether hosts receive what a switch multicasts of other hosts' words."""
        used = [self.mechanism.fabric_use]
        if self.strategy.spec.sharded and Collective.ALL_GATHER in self.mechanism.collectives:
            used = [self.mechanism.of(Collective.ALL_GATHER).fabric_use]
        return FabricUse.MULTICAST in used or self.strategy.needs_fabric

    @property
    def server_hosts(self) -> tuple[str, ...]:
        """Node name of each server's host. A strategy's servers may share the hosts of the mechanism's."""
        theirs, own = self.mechanism.servers, self.strategy.servers
        shared = self.strategy.shares_workers_hosts and self.mechanism.chosen.get("colocated")
        if shared or self.strategy.colocated:
            return (*map(server, range(theirs)), *map(worker, range(own)))
        first = 0 if self.strategy.shares_hosts else theirs
        return tuple(map(server, (*range(theirs), *range(first, first + own))))

    @property
    def hosts(self) -> int:
        """Number of hosts that servers use in addition to the workers'."""
        return len({host for host in self.server_hosts if host.startswith("server")})

    def require_workers(self, workers: int) -> None:
        """Check the number of workers.

        Raises:
            HostlibError: servers share hosts with more workers than there are, or the workers make no whole pipelines.
        """
        if workers % self.strategy.stages:
            raise HostlibError(
                f"{self}: pipelines of {self.strategy.stages} stages need a multiple of as many workers, not {workers}"
            )
        sharing = len([host for host in self.server_hosts if host.startswith("worker")])
        if sharing > workers:
            raise HostlibError(f"{self}: {sharing} servers cannot share the hosts of {workers} workers")

    def plan(self, trace: Trace, layers: tuple[LayerInfo, ...], workers: int, batch: int) -> Plan:
        """Plan one iteration of a model.

        Args:
            layers: of the model; empty if they are unknown.
            batch: examples of one worker.

        Raises:
            HostlibError: see Strategy.plan and require_workers.
        """
        self.require_workers(workers)
        own = self.server_hosts[self.mechanism.servers :]
        return self.strategy.plan(trace, PlanContext(str(self), layers, workers, batch, self.mechanism, own))

    def __str__(self) -> str:
        if self.strategy.name == DEFAULT_STRATEGY:
            return self.mechanism.name
        return f"{self.strategy.name}/{self.mechanism.name}"


def parts_of(text: str) -> tuple[Strategy, str]:
    """The strategy that a text names, and the name of the mechanism, which may not exist; see choose.

    Raises:
        HostlibError: see find_strategy.
    """
    first, slash, name = text.partition("/")
    if slash:
        return find_strategy(first), name
    if _is_strategy(first.partition(":")[0]):
        strategy = find_strategy(first)
        return strategy, strategy.mechanism
    return find_strategy(DEFAULT_STRATEGY), text


def choose(text: str) -> Choice:
    """Parse `ring`, `bsp/ring`, or `ralp`: a bare mechanism means wfbp, a bare strategy its paper's mechanism.

    Raises:
        UnknownNameError: there is no such strategy or mechanism.
        HostlibError: an option is impossible, or the two cannot be combined; the message lists legal ones.
    """
    strategy, name = parts_of(text)
    mechanism = find(name)
    if (why := strategy.refusal(mechanism)) is not None:
        legal = ", ".join(sorted(n for n, m in registered().items() if strategy.refusal(m) is None))
        raise HostlibError(f"{strategy.name} does not go with {mechanism.name}: {why}; legal are {legal}")
    return Choice(strategy, mechanism)


def _is_strategy(plain: str) -> bool:
    """Whether a bare name is a strategy's, even a broken one's."""
    return registry().knows(plain) and plain not in registered()
