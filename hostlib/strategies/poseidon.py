"""poseidon: hybrid communication over a key-value store. Source: "Poseidon", sections 3 and 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import HostlibError
from hostlib.poseidon import cheaper, ps_cost
from hostlib.registry import Mechanism

if TYPE_CHECKING:
    from hostlib.training.connected import Connected
    from hostlib.training.setting import Setting, Trainer

NAME = "poseidon"
SUMMARY = "hybcomm over a key-value store of its own, whose shards apply the updates and survive being killed"
MECHANISM = "gloo"  # which has nothing to do


@dataclass(frozen=True, slots=True)
class Options:
    """What may follow its name.

    Attributes:
        servers: shards of the store.
        checkpoint: iterations between two checkpoints of a shard; workers keep the updates since the last.
        drop: how many seconds after the first worker's update the others' may come to count; 0 for all the time they
            need. With it all layers go by the store: only its count is everybody's.
    """

    servers: int = 1
    checkpoint: int = 10
    drop: float = 0.0

    def __post_init__(self) -> None:
        for name in ("servers", "checkpoint"):
            if getattr(self, name) < 1:
                raise HostlibError(f"{NAME}:{name} must be at least 1, not {getattr(self, name)}")
        if not self.drop >= 0:
            raise HostlibError(f"{NAME}:drop must be at least 0, not {self.drop:g}")


def servers(options: Options) -> int:
    return options.servers


def refusal(mechanism: Mechanism) -> str | None:
    return None if mechanism.name == MECHANISM else "its key-value store takes the mechanism's place"


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.connected import Factors
    from hostlib.training.exchange import Broadcast
    from hostlib.training.layerwise import LayerWise
    from hostlib.training.stored import Stored

    workers = setting.group.world_size

    def choose(layer: Connected) -> bool:
        """Algorithm 1."""
        matrix = (layer.shape.outputs, layer.shape.inputs)
        dense = ps_cost(matrix[0] * matrix[1], workers, options.servers).both
        return not options.drop and cheaper(matrix, layer.vectors, workers, dense) == "SFB"

    peers = setting.another_peers()
    exchange = Broadcast(setting.group, peers, Factors())
    return LayerWise(setting, exchange, choose, lambda state: Stored(setting.group, peers, state, options.servers))


def serve(setting: Setting, number: int, options: Options) -> None:
    from hostlib.store.keeper import keep

    keep(setting, number, options.checkpoint, options.drop or None)
