"""poseidon: hybrid communication over a key-value store. Source: "Poseidon", sections 3 and 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostlib.errors import HostlibError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.models.layer_info import LayerInfo
from hostlib.schedules.schedule import piece_bounds
from hostlib.strategies.common.sync_cost import cheaper, ps_cost
from hostlib.strategies.plan import FLOAT_BYTES, Exchange, GradientExchange, Plan, PlanContext, factors, vectors
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.common.linear_factors import Connected
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "poseidon"
MECHANISM = "gloo"  # the mechanism, which is not used


@dataclass(frozen=True, slots=True)
class Options:
    """Options after the name.

    Attributes:
        servers: number of shards of the store.
        checkpoint: iterations between two checkpoints of a shard; workers keep the updates since the last one.
        drop: seconds after the first worker's update within which the others' count; 0 for no limit. With a limit all
            layers use the store, because only its count is shared by all workers.
        colocated: the shards live on the first workers' hosts, not on hosts of their own.
    """

    servers: int = 1
    checkpoint: int = 10
    drop: float = 0.0
    colocated: bool = False

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


def trainer(context: TrainerContext, options: Options) -> Trainer:
    from hostlib.strategies.builtin.poseidon.store_carrier import Stored
    from hostlib.strategies.common.gradient_exchange import Broadcast, ByPeers
    from hostlib.strategies.common.layerwise import LayerWise
    from hostlib.strategies.common.linear_factors import Factors

    workers = context.rank_context.world_size

    def choose(layer: Connected) -> bool:
        return by_factors((layer.shape.outputs, layer.shape.inputs), layer.vectors, workers, options)

    transport = context.another_transport()
    exchange = Broadcast(context.rank_context, ByPeers(transport), Factors())
    return LayerWise(
        context, exchange, choose, lambda state: Stored(context.rank_context, transport, state, options.servers)
    )


def serve(context: TrainerContext, number: int, options: Options) -> None:
    from hostlib.strategies.builtin.poseidon.store.supervisor import keep

    keep(context, number, options.checkpoint, options.drop or None)


def by_factors(matrix: tuple[int, int], vectors: int, workers: int, options: Options) -> bool:
    """Algorithm 1: whether to send a layer as sufficient factors."""
    dense = ps_cost(matrix[0] * matrix[1], workers, options.servers).both
    return not options.drop and cheaper(matrix, vectors, workers, dense) == "SFB"


def plan(trace: Trace, context: PlanContext, options: Options) -> Plan:
    """Plan each layer, in backward order: factors, or the layer's own pairs."""
    sizes = {p.name: p.bytes for p in trace.parameters if p.trained}
    carried: list[GradientExchange] = []
    pairs = 0
    for layer in reversed(context.known_layers()):
        names = tuple(name for name in layer.members if name in sizes)
        if not names:
            continue
        if layer.matrix and by_factors(layer.matrix, vectors(layer, context.batch), context.workers, options):
            carried.append(GradientExchange(names, factors(layer, context)))
        else:
            stored = _stored(layer, sum(sizes[name] for name in names), context.workers, options, pairs)
            pairs += len(stored.sizes)
            carried.append(GradientExchange(names, stored))
    return Plan(trace, tuple(carried))


def _stored(layer: LayerInfo, size: int, workers: int, options: Options, first: int) -> Exchange:
    """A layer's pairs to their shards and back: the messages of parameter servers, pair by pair.

    Args:
        first: the number of its first pair.
    """
    where = ":colocated" if options.colocated else ""
    schedule = find(f"ps:servers={options.servers}:assign=pairs{where}").schedule(workers, size, first)
    bounds = piece_bounds(size // FLOAT_BYTES, schedule.pieces)
    sizes = tuple(FLOAT_BYTES * (end - begin) for begin, end in bounds)
    return Exchange(layer.name, schedule, sizes)


SPEC = StrategySpec(
    NAME,
    "hybcomm over a key-value store of its own, whose shards apply the updates and survive being killed",
    plan,
    trainer,
    mechanism=MECHANISM,
    options=Options,
    own_messages=True,
    servers=servers,
    serve=serve,
    colocated=lambda options: options.colocated,
    refusal=refusal,
)
