"""Options after ralp's name, and the split that they choose. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import HostlibError
from hostlib.strategies.builtin.ralp.placement import THRESHOLD, Placement, SplitPoint

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Options:
    """Options after the name: where the model is split, and how the server works.

    Attributes:
        split: the layer after which the model is split; `auto` for the profiler's decision.
        force: split even if the parameters are not skewed enough.
        threshold: the skewness below which the model is split.
        all: the server processes all workers' batches at once, instead of one after the other.
    """

    split: str = AUTO
    force: bool = False
    threshold: float = THRESHOLD
    all: bool = False


def chosen(placement: Placement, options: Options) -> SplitPoint | None:
    """The split that the profiler, or the options, choose; None for no split.

    Raises:
        HostlibError: the model cannot be split where the options say.
    """
    if options.split != AUTO:
        return placement.behind(options.split)
    if options.force and placement.split is None:
        raise HostlibError("ralp:force has nothing to cut: it is cheapest to leave every layer with the workers")
    return placement.split if placement.partition or options.force else None
