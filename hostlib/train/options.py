"""The options of a training run, shared by launcher and ranks. Torch-free."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from hostlib.collectives.arguments import require_deadline, require_lanes, require_silence, require_slots
from hostlib.datasets.dataset import parse_dataset
from hostlib.errors import RunError
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.fabric.static_window import static_window
from hostlib.mechanisms.mechanism import find_fallback
from hostlib.models.zoo.catalogue import require_known
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.strategies.strategy import choose
from hostlib.transport.transport_registry import DEFAULT_TRANSPORT, require_transport
from hostlib.transport.waits import PATIENCE_S, SILENCE_S

MOST_WORKERS = 1024
FLAGS = {"steps": "--iterations", "batch_size": "--batch", "bucket_mb": "--bucket"}


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of `hostlib train`; batch size is per rank, bucket size in MiB.

    Attributes:
        model: a network of the zoo, with its options, or `package.module:factory`.
        data: a text for hostlib.datasets.dataset.parse_dataset().
        steps: maximum number, regardless of the epochs; None for unlimited.
        fallback: the mechanism that takes over when the switch fails.
        lanes: sockets and threads per rank that share a tensor on its way to the switch; 1 to 4.
        slots: of the switch for each lane, a power of two.
        transport: carries messages between hosts.
        deadline_s, patience_s, silence_s: docs/failures.md, "How long is waited".
        profile: folder for one Chrome trace per rank; None for no trace.
        save: file for the final weights, as by torch.save; None for no file.

    Raises:
        RunError: a number is out of range, NETFOLD_WINDOW's too.
        UnknownNameError: there is no such model, data set or fallback.
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
    patience_s: float = PATIENCE_S
    silence_s: float = SILENCE_S
    address: str = "127.0.0.1"
    steps: int | None = None
    fallback: str = "ring"
    lanes: int = 1
    slots: int = SLOTS_PER_POOL
    transport: str = DEFAULT_TRANSPORT
    profile: str | None = None
    save: str | None = None
    data: str = "digits"

    def __post_init__(self) -> None:
        require_known(self.model)
        parse_dataset(self.data)
        require_transport(self.transport)
        choose(self.mechanism).mechanism.require_ranks(self.transport)
        find_fallback(self.fallback)
        for name in ("steps", "epochs", "batch_size", "lr", "bucket_mb"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                finite = " and finite" if value == math.inf else ""
                raise RunError(f"{FLAGS.get(name, f'--{name}')} must be above 0{finite}, not {value}")
        require_deadline("--deadline", self.deadline_s)
        require_deadline("--patience", self.patience_s)
        require_silence("--silence", self.silence_s)
        require_lanes("--lanes", self.lanes)
        require_slots("--slots", self.slots, self.lanes)
        static_window(self.slots)
        if self.world_size is not None and self.world_size < 1:
            raise RunError(f"--workers must be at least 1, not {self.world_size}")
        if self.world_size is not None and self.world_size > MOST_WORKERS:
            raise RunError(f"--workers must be at most {MOST_WORKERS}, not {self.world_size}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainOptions:
        return cls(**json.loads(text))
