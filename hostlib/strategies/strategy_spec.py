"""The declaration of a strategy in its package. Torch-free."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from hostlib.errors import SpecError
from hostlib.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism
from hostlib.strategies.plan import Plan, PlanContext
from hostlib.system.plugins import require_name
from hostlib.text.name_options import is_kind
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext


@dataclass(frozen=True, slots=True)
class NoOptions:
    """Options of a strategy without any."""


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """Declaration of a strategy: SPEC in a module of hostlib/strategies/builtin/, or an entry point of
    `netfold.strategies`.

    All functions take the strategy's options last.

    Attributes:
        name: what `--mechanism` takes before its slash.
        summary: what it does, in one line.
        plan: applies it to a model's trace.
        trainer: makes a rank's trainer. Imports torch only when it is called.
        mechanism: what a bare strategy sums with, its paper's.
        options: a frozen dataclass of the options after the name, `name:option=value`, each with a default.
        exact: its steps equal those of one process with all ranks' examples, except for rounding. Otherwise its weights
            are still the same on every rank.
        own_messages: not all of its messages use the mechanism.
        only_timing: it only decides when sums are requested. The torch backend (hostlib/pytorch/backend.py) accepts
            such strategies, because there the caller requests them.
        servers: number of its processes in addition to workers and the mechanism's servers.
        serve: runs its server of a number until the workers have ended.
        shares_hosts: its servers live on the hosts of the mechanism's servers, if those have their own.
        shares_workers_hosts: as shares_hosts, also if those are the workers' hosts.
        colocated: its servers live with the workers, whatever the mechanism.
        needs_fabric: whether its own messages use the fabric's program.
        refusal: why it cannot be combined with a mechanism; None if it can. Takes no options.
        stages: number of workers that train one copy of the model together. The workers of one stage are neighbours,
            and the mechanism sums gradients over them only; see hostlib.pipelines.pipeline_options. None for 1.
        sharded: workers keep weights or optimisers' states in shards. `ask` does not count the memory that this saves, so
            the search and the suite leave it out.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    summary: str
    plan: Callable[[Trace, PlanContext, Any], Plan]
    trainer: Callable[[TrainerContext, Any], Trainer]
    mechanism: str = DEFAULT_MECHANISM
    options: type = NoOptions
    exact: bool = True
    own_messages: bool = False
    only_timing: bool = False
    servers: Callable[[Any], int] | None = None
    serve: Callable[[TrainerContext, int, Any], None] | None = None
    shares_hosts: bool = False
    shares_workers_hosts: bool = False
    colocated: Callable[[Any], bool] | None = None
    needs_fabric: Callable[[Any], bool] | None = None
    refusal: Callable[[Mechanism], str | None] | None = None
    stages: Callable[[Any], int] | None = None
    sharded: bool = False

    def __post_init__(self) -> None:
        require_name(self.name, self.summary)
        if not isinstance(self.mechanism, str):
            raise SpecError(f"mechanism must be a name, not {self.mechanism!r}")
        for field in ("exact", "own_messages", "only_timing", "shares_hosts", "shares_workers_hosts", "sharded"):
            if not isinstance(value := getattr(self, field), bool):
                raise SpecError(f"{field} must be True or False, not {value!r}")
        for field in ("plan", "trainer", "servers", "serve", "colocated", "needs_fabric", "refusal", "stages"):
            value = getattr(self, field)
            if not callable(value) and (value is not None or field in ("plan", "trainer")):
                raise SpecError(f"{field} must be a function, not {value!r}")
        if (self.servers is None) != (self.serve is None):
            raise SpecError("servers and serve go together")
        _require_options(self.options)

    @property
    def kinds(self) -> dict[str, Any]:
        """Option -> type."""
        return typing.get_type_hints(self.options)


def _require_options(options: object) -> None:
    if not isinstance(options, type) or not is_dataclass(options):
        raise SpecError(f"options must be a dataclass, not {options!r}")
    try:
        kinds = typing.get_type_hints(options)
    except NameError as error:
        raise SpecError(f"the types of {options.__name__} cannot be read: {error}") from error
    for field in fields(options):
        if field.default is MISSING:
            raise SpecError(f"option {field.name} needs a default")
        if not is_kind(kinds[field.name]):
            raise SpecError(
                f"option {field.name} must be an int, float, str, bool or Literal, not {kinds[field.name]!r}"
            )
