"""ralp: resource-aware layer placement. Source: "RALP", section 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.skew import THRESHOLD

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "ralp"
SUMMARY = "the last layers live at a server, which gets activations; only the first layers' gradients are summed"
MECHANISM = "ps"
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
