"""What a training run is told, in one value that launcher and ranks share. Torch-free."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hostlib.errors import RunError, UnknownNameError
from hostlib.join import DEFAULT_CONTROLLER

MODEL_NAMES = ("lenet", "vgg")  # hostlib.models has them; here they can be checked without loading torch


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `hostlib train`; batch size is per rank, bucket size in MiB, the deadline in seconds.

    Raises:
        RunError: a number that makes no sense.
    """

    mechanism: str = "inagg+mcast"
    model: str = "lenet"
    world_size: int | None = None
    epochs: int = 12
    batch_size: int = 16
    lr: float = 0.05
    seed: int = 1
    bucket_mb: float = 0.05
    controller: str = DEFAULT_CONTROLLER
    deadline_s: float = 30.0
    address: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.model not in MODEL_NAMES:
            raise UnknownNameError("model", self.model, MODEL_NAMES)
        for name in ("epochs", "batch_size", "lr", "bucket_mb", "deadline_s"):
            if not getattr(self, name) > 0:
                raise RunError(
                    f"--{name.replace('_', '-').removesuffix('-s')} must be above 0, not {getattr(self, name)}"
                )
        if self.world_size is not None and self.world_size < 1:
            raise RunError(f"--world-size must be at least 1, not {self.world_size}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainOptions:
        return cls(**json.loads(text))
