"""The declaration of a mechanism in its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hostlib.errors import SpecError
from hostlib.schedules.contract import Collective
from hostlib.schedules.schedule import FabricUse, Schedule
from hostlib.system.plugins import require_name
from hostlib.text.name_options import is_kind

ARGUMENTS = ("world_size", "size", "turn")  # arguments of a schedule function; its other parameters are options

FabricUseOfOptions = Callable[[Mapping[str, Any]], FabricUse | None]


@dataclass(frozen=True, slots=True)
class MechanismSpec:
    """Declaration of a mechanism: SPEC in a file of hostlib/mechanisms/builtin/, or an entry point of
    `netfold.mechanisms`.

    Attributes:
        name: what `--mechanism` takes.
        summary: what it does, in one line.
        schedule: of its all-reduce. Takes `world_size`, and may take `size` (of the tensor, in bytes) and `turn` (the tensor's number).
            Its keyword-only parameters are options, which follow the name: `ps:servers=4:assign=even`. None for a
            library's own all-reduce, and if no messages carry the values.
        collectives: what else it does: likewise a function for each collective, whose root, if it has one, is rank 0.
            None for a library's own. `size` is that of a rank's whole tensor. What such a schedule needs of the switches
            is in its own `fabric_use`.
        fabric_use: what its all-reduce needs of the switches, or a function of all its options that returns it; None if it has no
            switch, or can only be simulated. Checked against the schedule.
        transport: the transport that a library's own all-reduce requires; None for any.
        device: the type of device of the tensors that a library's own all-reduce takes; None for any.
        one_host: whether all ranks must be on one host.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    summary: str
    schedule: Callable[..., Schedule] | None = None
    fabric_use: FabricUse | FabricUseOfOptions | None = None
    transport: str | None = None
    device: str | None = None
    one_host: bool = False
    collectives: Mapping[Collective, Callable[..., Schedule] | None] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_name(self.name, self.summary)
        for name, kinds in (("transport", (str, type(None))), ("device", (str, type(None))), ("one_host", (bool,))):
            if not isinstance(value := getattr(self, name), kinds):
                raise SpecError(f"{name} must be {' or '.join(k.__name__ for k in kinds)}, not {value!r}")
        _require_collectives(self.collectives)
        for collective, schedule in self.schedules.items():
            if (schedule is None) != (self.schedule is None):
                raise SpecError(f"{collective} must have a schedule if, and only if, the all-reduce has one")
            if schedule is not None:
                _require_schedule(schedule)
        if self.fabric_use is not None and not isinstance(self.fabric_use, FabricUse) and not callable(self.fabric_use):
            raise SpecError(f"fabric_use must be a FabricUse or a function of the options, not {self.fabric_use!r}")
        if self.fabric_use is not None and self.schedule is None:
            raise SpecError("fabric_use is declared without a schedule")

    @property
    def schedules(self) -> dict[Collective, Callable[..., Schedule] | None]:
        """All collectives that it does, and the functions that make their schedules."""
        return {Collective.ALL_REDUCE: self.schedule, **self.collectives}

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """Its options by name, of whichever collective."""
        return {name: each for schedule in self.schedules.values() for name, each in options_of(schedule).items()}


def options_of(schedule: Callable[..., Schedule] | None) -> dict[str, inspect.Parameter]:
    """Options of a schedule function by name."""
    if schedule is None:
        return {}
    return {name: each for name, each in parameters(schedule).items() if name not in ARGUMENTS}


@cache
def parameters(schedule: Callable[..., Schedule]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a schedule function, cached because there is a schedule for every tensor."""
    return inspect.signature(schedule, eval_str=True).parameters


def _require_collectives(collectives: object) -> None:
    if not isinstance(collectives, Mapping):
        raise SpecError(f"collectives must be a mapping of collectives to schedules, not {collectives!r}")
    for each in collectives:
        if not isinstance(each, Collective) or each is Collective.ALL_REDUCE:
            raise SpecError(f"collectives must be other members of Collective than ALL_REDUCE, not {each!r}")


def _require_schedule(schedule: Callable[..., Schedule]) -> None:
    if not callable(schedule):
        raise SpecError(f"schedule must be a function, not {schedule!r}")
    try:
        found = parameters(schedule)
    except (TypeError, ValueError, NameError) as error:
        raise SpecError(f"the parameters of schedule() cannot be read: {error}") from error
    if "world_size" not in found:
        raise SpecError("schedule() must take world_size")
    for name, parameter in found.items():
        if name in ARGUMENTS:
            continue
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.default is inspect.Parameter.empty:
            raise SpecError(
                f"schedule() takes {', '.join(ARGUMENTS)}, and options as keywords with defaults: {name} is neither"
            )
        if not is_kind(parameter.annotation):
            raise SpecError(f"option {name} must be an int, float, str, bool or Literal, not {parameter.annotation!r}")
