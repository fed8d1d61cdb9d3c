"""cgdp: gradients are accumulated on the host's CPUs, chunk of layers by chunk of layers, during the backward pass.

Source: "Involving CPUs into Multi-GPU Deep Learning", sections 3.1 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.chunks import Search
from hostlib.errors import RunError

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "cgdp"
SUMMARY = "chunks of layers are accumulated on the host during the backward pass; the first steps find a chunk size"
MECHANISM = "shm"


@dataclass(frozen=True, slots=True)
class Options:
    """What may follow its name.

    Attributes:
        chunk: layers in a chunk; 0: the first steps find it, with the paper's step, range and interval.

    Raises:
        RunError: a number that makes no sense.
    """

    chunk: int = 0
    step: int = 10
    range: int = 5
    interval: int = 10

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise RunError(f"cgdp:chunk must be 0, for the first steps to find it, or above, not {self.chunk}")
        Search(self.step, self.range, self.interval)


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.cgdp import HostAccumulating

    return HostAccumulating(setting, options)
