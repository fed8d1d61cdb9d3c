"""Errors of the host side.

HostlibError
├── UnknownNameError    a mechanism, strategy, model or dtype that does not exist; names the legal ones
├── QuantityError       a bandwidth, size or time that is not one
├── ModelError          a model that cannot be made, or does not take what it is given
│   └── ContentsError   one whose forward pass decides by what is in its tensors
├── ScheduleError       a schedule that is not an all-reduce, or deadlocks; names node and piece
├── JoinError           the controller is not there, or refused the rank
├── MissingRankError    a rank died or stalled; `ranks` says which
├── FabricError         the switch does not answer, though all ranks are alive
└── RunError            a training run that could not be started or did not end well
"""

from __future__ import annotations

from collections.abc import Iterable

ENDED_EARLY = "ended before the others"  # said of a rank by another: its own words say more


class HostlibError(Exception):
    """One line that says what is wrong and what is legal."""


class UnknownNameError(HostlibError):
    """Something was asked for by a name that nothing has."""

    def __init__(self, kind: str, name: str, legal: Iterable[str]) -> None:
        self.kind, self.name, self.legal = kind, name, sorted(legal)
        super().__init__(f"unknown {kind} {name!r}; legal are {', '.join(self.legal) or 'none'}")


class QuantityError(HostlibError):
    """A number with a unit that cannot be read."""


class ModelError(HostlibError):
    """A model that cannot be made or looked at."""


class ContentsError(ModelError):
    """A model whose forward pass cannot be had without contents."""


class ScheduleError(HostlibError):
    """A schedule that must not run."""


class JoinError(HostlibError):
    """A rank could not join its job."""


class MissingRankError(HostlibError):
    """One or more ranks show no sign of life."""

    def __init__(self, ranks: list[int], waited_s: float, first_server: int | None = None) -> None:
        self.ranks = ranks
        servers = [] if first_server is None else [rank - first_server for rank in ranks if rank >= first_server]
        workers = ranks[: len(ranks) - len(servers)]
        parts = [
            f"{kind}{'' if len(some) == 1 else 's'} {', '.join(map(str, some))}"
            for kind, some in (("rank", workers), ("server", servers))
            if some
        ]
        verb = "is" if len(ranks) == 1 else "are"
        super().__init__(f"{' and '.join(parts)} {verb} missing: no sign of life, the others waited {waited_s:.0f} s")


class FabricError(HostlibError):
    """The switch does not answer."""


class RunError(HostlibError):
    """A training run failed."""
