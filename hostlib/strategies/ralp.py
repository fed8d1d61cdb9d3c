"""ralp: resource-aware layer placement. Source: "RALP", section 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import HostlibError
from hostlib.plan import FLOAT_BYTES, Plan, Situation, errand, errands_together, head, tail_ns
from hostlib.skew import THRESHOLD, Cut, Placement, place
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "ralp"
SUMMARY = "the last layers live at a server, which gets activations; only the first layers' gradients are summed"
MECHANISM = "ps"
OWN_MESSAGES = True
SHARES_HOSTS = True
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Options:
    """What decides where the model is cut, and what the server does.

    Attributes:
        split: the layer behind which the model is cut, whatever the profiler says; `auto` for what it says.
        force: cut even when the parameters are not skewed enough.
        threshold: how skewed they have to be.
        all: the server takes all workers' batches at once, instead of one after the other.
    """

    split: str = AUTO
    force: bool = False
    threshold: float = THRESHOLD
    all: bool = False


def servers(options: Options) -> int:
    return 1


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.ralp import trainer

    return trainer(setting, options)


def serve(setting: Setting, number: int, options: Options) -> None:
    from hostlib.training.ralp import serve

    serve(setting, options)


def plan(trace: Trace, situation: Situation, options: Options) -> Plan:
    cut = _cut(situation, options)
    if cut is None:
        return Plan(trace)
    workers, server, last = situation.workers, situation.servers[0], cut.layer.name
    size, compute_ns = FLOAT_BYTES * cut.output, tail_ns(trace, last)
    if options.all:
        return Plan(head(trace, last), errands=(errands_together(last, workers, server, size, workers * compute_ns),))
    errands = tuple(errand(last, workers, rank, server, size, compute_ns) for rank in range(workers))
    return Plan(head(trace, last), errands=errands)


def _cut(situation: Situation, options: Options) -> Cut | None:
    return chosen(place(situation.known_layers(), situation.batch, options.threshold), options)


def chosen(placement: Placement, options: Options) -> Cut | None:
    """Where the profiler, or the options, cut the model; None for not at all.

    Raises:
        HostlibError: it cannot be cut where the options want it.
    """
    if options.split != AUTO:
        return placement.behind(options.split)
    if options.force and placement.split is None:
        raise HostlibError("ralp:force has nothing to cut: it is cheapest to leave every layer with the workers")
    return placement.split if placement.partition or options.force else None
