"""What may follow ralp's name, and where it has the model cut. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import HostlibError
from hostlib.strategies.builtin.ralp.placement import THRESHOLD, Placement, SplitPoint

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


def chosen(placement: Placement, options: Options) -> SplitPoint | None:
    """Where the profiler, or the options, cut the model; None for not at all.

    Raises:
        HostlibError: it cannot be cut where the options want it.
    """
    if options.split != AUTO:
        return placement.behind(options.split)
    if options.force and placement.split is None:
        raise HostlibError("ralp:force has nothing to cut: it is cheapest to leave every layer with the workers")
    return placement.split if placement.partition or options.force else None
