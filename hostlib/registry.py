"""The mechanisms by name: whatever file of hostlib/mechanisms/ registers one."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from hostlib import mechanisms
from hostlib.errors import HostlibError, ScheduleError, UnknownNameError
from hostlib.schedule import FabricUse, Schedule

SERVER_CHANNELS = 4
GIVEN = ("world_size", "size", "turn")  # what a mechanism's schedule() is told; its other parameters are options
YES_NO = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A registered mechanism with its options.

    Attributes:
        name: as it was asked for, options included.
        build: its file's schedule(); None for a library's own, and where no messages carry the values.
        chosen: the options that differ from their defaults.
        transport: what ranks' messages must go by, else a library's own is not there; None for anything.
        device: the type of device that a library's own takes tensors of; None for any.
        one_host: whether all ranks must be on one host.
    """

    name: str
    summary: str
    build: Callable[..., Schedule] | None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    transport: str | None = None
    device: str | None = None
    one_host: bool = False

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """What may follow its name, by option."""
        if self.build is None:
            return {}
        return {name: each for name, each in _parameters(self.build).items() if name not in GIVEN}

    def schedule(self, world_size: int, size: int = 0, turn: int = 0) -> Schedule:
        """Its schedule for so many ranks.

        Args:
            size: of the tensor in bytes, for mechanisms that cut it by that.
            turn: the tensor's number, for those that deal tensors out.

        Raises:
            HostlibError: a library yardstick has none.
            ScheduleError: an option does not fit the world size.
        """
        if self.build is None:
            raise HostlibError(f"{self.what} and has no schedule")
        given = {"world_size": world_size, "size": size, "turn": turn}
        wanted = _parameters(self.build)
        made = self.build(**{name: value for name, value in given.items() if name in wanted}, **self.chosen)
        return replace(made, mechanism=self.name)

    @property
    def what(self) -> str:
        """What it is, where it has no schedule."""
        return f"{self.name} is " + ("a sum in shared memory" if self.one_host else "a library's own collective")

    @property
    def servers(self) -> int:
        """How many of its servers have hosts of their own."""
        return len(self._small().servers) if self.build is not None else 0

    @property
    def runs_on_hosts(self) -> bool:
        return self.build is None or self._small().runs_on_hosts

    def runs_with(self, transport: str) -> bool:
        """Whether ranks run it whose tensors are on the CPU and whose messages go by this."""
        return self.runs_on_hosts and self.transport in (None, transport) and self.device is None

    def require_ranks(self, transport: str) -> None:
        """That ranks run it whose tensors are on the CPU and whose messages go by this.

        Raises:
            ScheduleError: it can only be simulated.
            HostlibError: it is a library's own that is not there, or has no use for such tensors.
        """
        self.require_hosts()
        self.require_transport(transport)
        if self.device is not None:
            raise HostlibError(
                f"{self.name} sums {self.device.upper()} tensors alone, and those of these ranks are on the CPU; "
                f"legal: torch.distributed's backend netfold with NETFOLD_MECHANISM={self.name} (docs/torch.md)"
            )

    def require_transport(self, transport: str) -> None:
        """Raises HostlibError: it is a library's own, which is not there where messages go by this."""
        if self.transport not in (None, transport):
            raise HostlibError(
                f"{self.name} is a library's own collective, for ranks that the library started; legal: "
                f"mpirun -n 4 python -m hostlib.train --transport {self.transport} --mechanism {self.name}"
            )

    def require_hosts(self) -> None:
        """Raises ScheduleError: it can only be simulated."""
        if not self.runs_on_hosts:
            raise ScheduleError(
                f"{self.name} cannot run on hosts: there the fabric is at work for one server or none; it can be simulated"
            )

    @property
    def by_ranks_alone(self) -> bool:
        """Whether its schedule has neither switches nor servers with hosts of their own."""
        return self.build is not None and not self.needs_fabric and not self.servers

    @property
    def needs_fabric(self) -> bool:
        return self.build is not None and self._small().needs_fabric

    @property
    def sends_messages(self) -> bool:
        """Whether its hosts send each other messages, beside what goes through the fabric's program."""
        return not self.needs_fabric or self.fabric_use is FabricUse.MULTICAST

    @property
    def channels(self) -> int:
        """How many all-reduces a host is at, dealt out in turns; 0 where the fabric takes them all as one stream.

        While a server waits for one tensor, others are on the links; between workers they would only hold each other up.
        """
        if not self.sends_messages:
            return 0
        return SERVER_CHANNELS if self.servers else 1

    @property
    def fabric_use(self) -> FabricUse | None:
        return self._small().fabric_use if self.build is not None else None

    def _small(self) -> Schedule:
        # Of few workers, but as many as the options want: servers, racks.
        return self.schedule(max([2, *(value for value in self.chosen.values() if type(value) is int)]))


@cache
def _parameters(build: Callable[..., Schedule]) -> Mapping[str, inspect.Parameter]:
    """Looked at once: there is a schedule for every tensor."""
    return inspect.signature(build, eval_str=True).parameters


@cache
def registered() -> dict[str, Mechanism]:
    """All mechanisms with their default options, by name."""
    found = {}
    for module_info in pkgutil.iter_modules(mechanisms.__path__):
        module = importlib.import_module(f"{mechanisms.__name__}.{module_info.name}")
        found[module.NAME] = Mechanism(
            module.NAME,
            module.SUMMARY,
            getattr(module, "schedule", None),
            transport=getattr(module, "TRANSPORT", None),
            device=getattr(module, "DEVICE", None),
            one_host=getattr(module, "ONE_HOST", False),
        )
    return found


@cache
def find(name: str) -> Mechanism:
    """A mechanism by its name and options: `ring`, or `ps:servers=4:assign=even`.

    Raises:
        UnknownNameError: there is no such mechanism or option; names the legal ones.
        HostlibError: an option's value is not of its kind.
    """
    plain, *words = name.split(":")
    if plain not in registered():
        raise UnknownNameError("mechanism", plain, registered())
    mechanism = registered()[plain]
    kinds = {option: parameter.annotation for option, parameter in mechanism.options.items()}
    return replace(mechanism, name=name, chosen=option_values(plain, words, kinds))


def find_fallback(name: str) -> Mechanism:
    """A mechanism of the ranks' alone.

    Raises:
        UnknownNameError: there is no such mechanism, or it needs a switch or servers.
    """
    with contextlib.suppress(UnknownNameError):
        if (asked := find(name)).by_ranks_alone:
            return asked
    raise UnknownNameError("fallback", name, (n for n, m in registered().items() if m.by_ranks_alone))


def describe_option(parameter: inspect.Parameter) -> str:
    """`assign=whole|even|pairs`, the default first."""
    legal = _legal(parameter.annotation)
    default = next((word for word, value in YES_NO.items() if value is parameter.default), str(parameter.default))
    return f"{parameter.name}={'|'.join([default, *(word for word in legal if word != default)])}"


def _legal(kind: Any) -> tuple[str, ...]:
    if kind is bool:
        return tuple(YES_NO)
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def option_values(plain: str, words: list[str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """What `option=value` (or `option`, for yes) behind a name says.

    Args:
        plain: the name without options.
        kinds: of the legal options; see option_value.

    Raises:
        UnknownNameError: there is no such option.
        HostlibError: a value is not of its kind.
    """
    chosen = {}
    for word in words:
        option, equals, value = word.partition("=")
        if option not in kinds:
            raise UnknownNameError(f"option of {plain}", option, kinds)
        chosen[option] = option_value(f"{plain}:{option}", kinds[option], value if equals else "yes")
    return chosen


def option_value(what: str, kind: Any, text: str) -> Any:
    """The value of an option's text.

    Args:
        what: the option, for the error.
        kind: int, float, str, bool or a Literal of texts.

    Raises:
        HostlibError: it is not of that kind; says which are legal.
    """
    if kind is str:
        return text
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise HostlibError(f"{what} takes a number, not {text!r}") from None
    if kind is int:
        if not text.isdecimal():
            raise HostlibError(f"{what} takes a number, not {text!r}")
        return int(text)
    if text not in _legal(kind):
        raise UnknownNameError(what, text, _legal(kind))
    return YES_NO[text] if kind is bool else text
