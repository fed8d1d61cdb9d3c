"""What a training run is told, in one value that launcher and ranks share. Torch-free."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from hostlib.dataset import parse_dataset
from hostlib.errors import RunError, UnknownNameError
from hostlib.join import DEFAULT_CONTROLLER
from hostlib.registry import find_fallback
from hostlib.strategy import choose
from hostlib.zoo.names import require_known

TRANSPORTS = ("gloo", "mpi")  # of hostlib.peers


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `hostlib train`; batch size is per rank, bucket size in MiB, the deadline in seconds.

    Attributes:
        model: a network of the zoo, with its options, or `package.module:factory`.
        data: what hostlib.dataset.parse_dataset() takes.
        steps: no more than these, however many epochs; None for all.
        fallback: the mechanism that goes on when the switch fails.
        lanes: sockets and threads per rank that share a tensor on its way to the switch.
        transport: what messages between hosts go by.
        profile: folder for one Chrome trace per rank; None for no trace.
        save: file for the weights that the run ends with, as torch.save has them; None for no file.

    Raises:
        RunError: a number that makes no sense.
        UnknownNameError: no such model, data set or fallback.
        HostlibError: ranks cannot run the mechanism, or not with this transport.
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
    steps: int | None = None
    fallback: str = "ring"
    lanes: int = 1
    transport: str = "gloo"
    profile: str | None = None
    save: str | None = None
    data: str = "digits"

    def __post_init__(self) -> None:
        require_known(self.model)
        parse_dataset(self.data)
        if self.transport not in TRANSPORTS:
            raise UnknownNameError("transport", self.transport, TRANSPORTS)
        choose(self.mechanism).mechanism.require_ranks(self.transport)
        find_fallback(self.fallback)
        for name in ("epochs", "batch_size", "lr", "bucket_mb", "deadline_s", "steps", "lanes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RunError(f"--{name.replace('_', '-').removesuffix('-s')} must be above 0, not {value}")
        if self.world_size is not None and self.world_size < 1:
            raise RunError(f"--world-size must be at least 1, not {self.world_size}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainOptions:
        return cls(**json.loads(text))
