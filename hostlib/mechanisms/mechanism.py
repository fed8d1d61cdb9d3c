"""Look up mechanisms by name and options: those of hostlib/mechanisms/builtin/ and of other distributions."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from hostlib.errors import HostlibError, OperationError, ScheduleError, SpecError, UnknownNameError
from hostlib.mechanisms import builtin
from hostlib.mechanisms.mechanism_spec import MechanismSpec, options_of, parameters
from hostlib.schedules.contract import Collective
from hostlib.schedules.fabric_use import require_fit
from hostlib.schedules.schedule import FabricUse, Schedule, rooted
from hostlib.system.plugins import Broken, Registry, load_registry
from hostlib.text.name_options import option_values
from hostlib.transport.transport_registry import start_line

GROUP = "netfold.mechanisms"  # the entry-point group for other distributions
DEFAULT_MECHANISM = "inagg+mcast"
SERVER_CHANNELS = 4

# An option of every mechanism whose workers need no servers: the ranks of one host sum in shared memory first.
SAME_HOST = inspect.Parameter(
    "same_host", inspect.Parameter.KEYWORD_ONLY, default="no", annotation=Literal["no", "shm"]
)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A registered mechanism with its options, and one of the collectives that it does.

    Attributes:
        name: as the user gave it, options included.
        chosen: the options that differ from their defaults.
        collective: what all that depends on the schedule is about; `of` gives the same mechanism's others.
        same_host: whether the ranks of one host sum in shared memory, and one of them goes on for all; of the
            all-reduce. The schedule is that of the hosts then.
    """

    name: str
    spec: MechanismSpec
    chosen: Mapping[str, Any] = field(default_factory=dict)
    collective: Collective = Collective.ALL_REDUCE
    same_host: bool = False

    def of(self, collective: Collective) -> Mechanism:
        """The same mechanism for another collective. Raises ScheduleError: it does not do it, with these options."""
        if collective not in self.collectives:
            legal = ", ".join(map(str, self.collectives))
            raise ScheduleError(f"{self.name} does no {collective}; legal are {legal}")
        return replace(self, collective=collective, same_host=self.same_host and collective is Collective.ALL_REDUCE)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that it does, with these options."""
        return tuple(
            each for each, build in self.spec.schedules.items() if self.chosen.keys() <= options_of(build).keys()
        )

    @property
    def summary(self) -> str:
        return self.spec.summary

    @property
    def build(self) -> Callable[..., Schedule] | None:
        """Its function for the collective; see MechanismSpec.schedule."""
        return self.spec.schedules[self.collective]

    @property
    def transport(self) -> str | None:
        return self.spec.transport

    @property
    def device(self) -> str | None:
        return self.spec.device

    @property
    def one_host(self) -> bool:
        return self.spec.one_host

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """Its options by name, of whichever collective."""
        return self.spec.options | ({} if self.build is None or self.servers else {SAME_HOST.name: SAME_HOST})

    def schedule(self, world_size: int, size: int = 0, turn: int = 0, root: int = 0) -> Schedule:
        """Build the mechanism's schedule for a number of ranks.

        Args:
            size: of a rank's whole tensor in bytes, for mechanisms that split it by size.
            turn: the tensor's number, for mechanisms that assign tensors in turn; see `layout`.
            root: of a broadcast or reduce.

        Raises:
            HostlibError: a library yardstick has no schedule.
            ScheduleError: an option does not fit the world size, or the schedule function fails.
        """
        if self.build is None:
            raise HostlibError(f"{self.what} and has no schedule")
        size, turn = self.layout(world_size, size, turn)
        arguments = {"world_size": world_size, "size": size, "turn": turn}
        wanted = parameters(self.build)
        try:
            made = self.build(**{name: arguments[name] for name in arguments if name in wanted}, **self.chosen)
        except HostlibError:
            raise
        except Exception as error:
            raise ScheduleError(f"{self.name}: schedule() fails: {type(error).__name__}: {error}") from error
        if not isinstance(made, Schedule) or made.world_size != world_size:
            what = f"one for {made.world_size}" if isinstance(made, Schedule) else f"a {type(made).__name__}"
            raise OperationError(f"{self.name}: schedule() must return a Schedule for {world_size} workers, not {what}")
        use = self._declared_use if self.collective is Collective.ALL_REDUCE else made.fabric_use
        made = replace(
            made, mechanism=self.name, collective=self.collective, fabric_use=use if made.needs_fabric else None
        )
        return rooted(made, root)

    def layout(self, world_size: int, size: int = 0, turn: int = 0) -> tuple[int, int]:
        """Map a tensor's size and turn to what the schedule depends on: tensors with equal layouts have equal
        schedules.

        Tensors are assigned in turn to as many nodes as there are ranks, or as an option says; turns repeat after that
        many.
        """
        if self.build is None:
            return 0, 0
        wanted = parameters(self.build)
        options = {name: self.chosen.get(name, each.default) for name, each in options_of(self.build).items()}
        counts = [value for value in options.values() if type(value) is int and value > 0]
        return size if "size" in wanted else 0, turn % math.lcm(world_size, *counts) if "turn" in wanted else 0

    @property
    def what(self) -> str:
        """What it is, if it has no schedule."""
        return f"{self.name} is " + ("a sum in shared memory" if self.one_host else "a library's own collective")

    @property
    def servers(self) -> int:
        """Number of its servers that have hosts of their own."""
        return len(self._small().servers) if self.build is not None else 0

    @property
    def runs_on_hosts(self) -> bool:
        return self.build is None or self._small().runs_on_hosts

    def runs_with(self, transport: str) -> bool:
        """Whether ranks with CPU tensors can run it over this transport."""
        return self.runs_on_hosts and self.transport in (None, transport) and self.device is None

    def require_ranks(self, transport: str) -> None:
        """Check that ranks with CPU tensors can run it over this transport.

        Raises:
            ScheduleError: it can only be simulated.
            HostlibError: it is a library's own, and the library is missing or does not take such tensors.
        """
        self.require_hosts()
        self.require_transport(transport)
        if self.device is not None:
            raise HostlibError(
                f"{self.name} only sums {self.device.upper()} tensors, but these ranks' are on the CPU; "
                f"legal: torch.distributed's backend netfold with NETFOLD_MECHANISM={self.name} (docs/torch.md)"
            )

    def require_transport(self, transport: str) -> None:
        """Check that a library's mechanism is available over this transport. Raises HostlibError: it is not."""
        if self.transport is not None and self.transport != transport:
            raise HostlibError(
                f"{self.name} is a library's own collective, for ranks that the library started; legal: "
                f"{start_line(self.transport, 4)} --mechanism {self.name}"
            )

    def require_hosts(self) -> None:
        """Check that hosts can run it. Raises ScheduleError: it can only be simulated."""
        if not self.runs_on_hosts:
            undeclared, many = "it declares no use of the switch", "on hosts the fabric works for one server or none"
            why = undeclared if self.fabric_use is None else many
            what = "" if self.collective is Collective.ALL_REDUCE else f"'s {self.collective}"
            raise ScheduleError(f"{self.name}{what} cannot run on hosts: {why}; it can be simulated")

    @property
    def by_ranks_alone(self) -> bool:
        """Whether its schedule has neither switches nor servers with hosts of their own."""
        return self.build is not None and not self.needs_fabric and not self.servers and not self.same_host

    @property
    def needs_fabric(self) -> bool:
        return self.build is not None and self._small().needs_fabric

    @property
    def sends_messages(self) -> bool:
        """Whether its hosts exchange messages in addition to the fabric's packets."""
        return not self.needs_fabric or self.fabric_use is FabricUse.MULTICAST

    @property
    def channels(self) -> int:
        """How many all-reduces a host has in progress, dealt out in turn; 0 if the fabric takes them all as one stream.

        While a server waits for one tensor, others use the links; between workers, concurrent tensors would only delay
        each other.
        """
        if not self.sends_messages:
            return 0
        return SERVER_CHANNELS if self.servers else 1

    @property
    def fabric_use(self) -> FabricUse | None:
        """The declared use of the switches, with these options."""
        return self._declared_use if self.collective is Collective.ALL_REDUCE else self._small().fabric_use

    @property
    def _declared_use(self) -> FabricUse | None:
        """Of the all-reduce."""
        declared = self.spec.fabric_use
        if declared is None or isinstance(declared, FabricUse):
            return declared
        return declared({name: each.default for name, each in self.spec.options.items()} | dict(self.chosen))

    def _small(self) -> Schedule:
        return _small(self.spec, tuple(sorted(self.chosen.items())), self.collective)


@cache
def _small(
    spec: MechanismSpec, chosen: tuple[tuple[str, Any], ...], collective: Collective = Collective.ALL_REDUCE
) -> Schedule:
    """A schedule with few workers, but enough for the options' servers or racks."""
    workers = max([2, *(value for _, value in chosen if type(value) is int)])
    return Mechanism(spec.name, spec, dict(chosen), collective).schedule(workers)


def _require_sound(spec: MechanismSpec) -> None:
    """Check that a specification's schedules can be made and match its declaration.

    Raises:
        HostlibError: it is not, or does not.
    """
    if spec.schedule is None:
        return
    if (use := Mechanism(spec.name, spec).fabric_use) is not None and not isinstance(use, FabricUse):
        raise SpecError(f"fabric_use must give a FabricUse, not {use!r}")
    for collective in spec.schedules:
        schedule = _small(spec, (), collective)
        for node in schedule.nodes:
            try:
                schedule.nodes[node]
            except HostlibError:
                raise
            except Exception as error:
                raise OperationError(
                    f"making the operations of {node} fails: {type(error).__name__}: {error}"
                ) from error
        require_fit(schedule)
    if use is not None and not _small(spec, ()).needs_fabric:
        raise SpecError(f"declares the fabric's use {use.name}, but its schedule has no switch")


@cache
def registry() -> Registry[MechanismSpec]:
    """The registered mechanisms and those that could not be registered."""
    return load_registry(builtin, GROUP, MechanismSpec, _require_sound)


def registered() -> dict[str, Mechanism]:
    """All mechanisms with their default options, by name."""
    return {name: Mechanism(name, spec) for name, spec in registry().specs.items()}


def broken_mechanisms() -> tuple[Broken, ...]:
    """The mechanisms that could not be registered."""
    return registry().broken


@cache
def find(name: str) -> Mechanism:
    """Find a mechanism by its name and options: `ring`, or `ps:servers=4:assign=even`.

    Raises:
        UnknownNameError: there is no such mechanism or option; the message lists the legal ones.
        SpecError: its declaration is invalid; the message names its file.
        HostlibError: an option's value has the wrong type.
    """
    plain, *words = name.split(":")
    spec = registry().find("mechanism", plain)
    kinds = {option: parameter.annotation for option, parameter in Mechanism(plain, spec).options.items()}
    chosen = option_values(plain, words, kinds)
    same_host = chosen.pop(SAME_HOST.name, SAME_HOST.default) != SAME_HOST.default
    made = Mechanism(name, spec, chosen, same_host=same_host)
    if same_host and made.servers:
        raise HostlibError(f"{name}: the ranks of a host can sum in shared memory first where there are no servers")
    return made


def find_fallback(name: str) -> Mechanism:
    """Find a mechanism that needs neither switch nor servers.

    Raises:
        UnknownNameError: there is no such mechanism, or it needs a switch or servers.
    """
    with contextlib.suppress(UnknownNameError):
        if (asked := find(name)).by_ranks_alone:
            return asked
    raise UnknownNameError("fallback", name, (n for n, m in registered().items() if m.by_ranks_alone))
