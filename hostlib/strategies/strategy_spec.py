"""What a strategy's package says of it. Torch-free."""

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
    """Of a strategy whose name nothing may follow."""


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A strategy; a module of hostlib/strategies/builtin/, or an entry point of `netfold.strategies`, has one as SPEC.

    All functions take the strategy's options last.

    Attributes:
        name: what `--mechanism` takes before its slash.
        summary: what it does, in a line.
        plan: what it makes of a model's trace.
        trainer: a rank's steps. It imports what needs torch when it is called.
        mechanism: what a bare strategy sums with, its paper's.
        options: a frozen dataclass of what may follow the name, `name:option=value`, each with a default.
        exact: its steps are those of one process that has all ranks' examples, rounding apart. Where they are by intent
            not, its weights are still the same on every rank.
        own_messages: not all of it goes by the mechanism.
        only_timing: all that it decides is when sums are called for. Where PyTorch's own wrappers call for them
            (hostlib/pytorch/backend.py) that is the caller's matter, and the strategy may be named there.
        servers: how many processes it has beside workers and the mechanism's servers.
        serve: what its server of a number does, until the workers have ended.
        shares_hosts: its servers live on the hosts of the mechanism's, where those have any.
        shares_workers_hosts: also where those are the workers'.
        colocated: its servers live with the workers, whatever the mechanism.
        needs_fabric: whether its own messages go through the fabric's program.
        refusal: why it cannot go with a mechanism; None when it can. Takes no options.

    Raises:
        SpecError: a field is not of its kind.
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

    def __post_init__(self) -> None:
        require_name(self.name, self.summary)
        if not isinstance(self.mechanism, str):
            raise SpecError(f"mechanism must be a name, not {self.mechanism!r}")
        for field in ("exact", "own_messages", "only_timing", "shares_hosts", "shares_workers_hosts"):
            if not isinstance(value := getattr(self, field), bool):
                raise SpecError(f"{field} must be True or False, not {value!r}")
        for field in ("plan", "trainer", "servers", "serve", "colocated", "needs_fabric", "refusal"):
            value = getattr(self, field)
            if not callable(value) and (value is not None or field in ("plan", "trainer")):
                raise SpecError(f"{field} must be a function, not {value!r}")
        if (self.servers is None) != (self.serve is None):
            raise SpecError("servers and serve go together")
        _require_options(self.options)

    @property
    def kinds(self) -> dict[str, Any]:
        """Of what may follow the name."""
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
