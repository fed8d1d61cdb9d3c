"""cgdp: gradients are accumulated on the host's CPUs, chunk of layers by chunk of layers, during the backward pass.

Source: "Involving CPUs into Multi-GPU Deep Learning", sections 3.1 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.chunks import (
    ACCUMULATION_GB_S,
    BROADCAST_GB_S,
    NS_PER_S,
    SYNCHRONISATION_US,
    LayerCost,
    Search,
    costs_of,
    partition,
    predict,
    search,
    trained_layers,
)
from hostlib.errors import RunError
from hostlib.plan import Carried, Plan, Situation, at_the_host, gradients, pausing
from hostlib.trace import Trace

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
        sync: microseconds for which handing a chunk over holds back-propagation up,
        accumulation: GB/s that the host takes in and adds,
        broadcast: GB/s that go back to each worker: of what is simulated or replayed; where it runs, it takes what it
            takes.

    Raises:
        RunError: a number that makes no sense.
    """

    chunk: int = 0
    step: int = 10
    range: int = 5
    interval: int = 10
    sync: float = SYNCHRONISATION_US
    accumulation: float = ACCUMULATION_GB_S
    broadcast: float = BROADCAST_GB_S

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise RunError(f"cgdp:chunk must be 0, for the first steps to find it, or above, not {self.chunk}")
        if not (0 <= self.sync < float("inf") and self.accumulation > 0 and self.broadcast > 0):
            raise RunError("cgdp:accumulation and cgdp:broadcast must be above 0, and cgdp:sync not below")
        Search(self.step, self.range, self.interval)


def trainer(setting: Setting, options: Options) -> Trainer:
    from hostlib.training.cgdp import HostAccumulating

    return HostAccumulating(setting, options)


def plan(trace: Trace, situation: Situation, options: Options) -> Plan:
    """Where all workers are on one host (`shm`), it adds a chunk at a time, by the cost model; else the mechanism sums."""
    layers = _trained(trace, situation)
    costs = costs_of(trace, options.sync / 1e6, options.accumulation * 1e9, options.broadcast * 1e9, layers)
    made = partition(len(layers), options.chunk or _found(costs, options))
    chunks = tuple(tuple(name for layer in chunk for name in layers[layer - 1]) for chunk in made)
    trace = pausing(trace, chunks, round(options.sync * 1e3))
    if not situation.mechanism.one_host:
        return Plan(trace, chunks=chunks)
    sizes = {p.name: p.bytes for p in trace.parameters}
    carried = []
    for members, names in zip(made, chunks, strict=True):
        adding_s = sum(costs[layer - 1].accumulation + costs[layer - 1].broadcast for layer in members)
        size = sum(sizes[name] for name in names)
        name = f"layers {members[0]} to {members[-1]}"
        carried.append(Carried(names, at_the_host(name, situation.workers, size, round(adding_s * NS_PER_S))))
    return Plan(trace, tuple(carried))


def _trained(trace: Trace, situation: Situation) -> tuple[tuple[str, ...], ...]:
    """The parameters of each layer that is trained, in forward order; a normalisation belongs to the layer before it,
    where it is known which layers those are."""
    sent = set(gradients(trace))
    layers = [layer.members for layer in situation.layers] or trained_layers(trace)
    kept = (tuple(name for name in names if name in sent) for names in layers)
    return tuple(names for names in kept if names)


def _found(costs: list[LayerCost], options: Options) -> int:
    """The size at which the search ends when steps take what the cost model says."""
    sizes = range(1, len(costs) + 1)
    lapses_s = {size: predict(costs, partition(len(costs), size), in_turn=True).total for size in sizes}
    return search(lapses_s, options.step, options.range, options.interval, len(costs)).best
