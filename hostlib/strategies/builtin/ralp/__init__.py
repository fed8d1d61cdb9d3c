"""ralp: resource-aware layer placement. Source: "RALP", section 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.builtin.ralp.placement import SplitPoint, place
from hostlib.strategies.builtin.ralp.ralp_options import Options, chosen
from hostlib.strategies.plan import FLOAT_BYTES, Plan, PlanContext, head, sync_exchange, sync_exchange_of_all, tail_ns
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "ralp"


def servers(options: Options) -> int:
    return 1


def trainer(context: TrainerContext, options: Options) -> Trainer:
    from hostlib.strategies.builtin.ralp.ralp_trainer import trainer

    return trainer(context, options)


def serve(context: TrainerContext, number: int, options: Options) -> None:
    from hostlib.strategies.builtin.ralp.ralp_trainer import serve

    serve(context, options)


def plan(trace: Trace, context: PlanContext, options: Options) -> Plan:
    cut = _cut(context, options)
    if cut is None:
        return Plan(trace)
    workers, server, last = context.workers, context.servers[0], cut.layer.name
    size, compute_ns = FLOAT_BYTES * cut.output, tail_ns(trace, last)
    if options.all:
        return Plan(
            head(trace, last), blocking=(sync_exchange_of_all(last, workers, server, size, workers * compute_ns),)
        )
    blocking = tuple(sync_exchange(last, workers, rank, server, size, compute_ns) for rank in range(workers))
    return Plan(head(trace, last), blocking=blocking)


def _cut(context: PlanContext, options: Options) -> SplitPoint | None:
    return chosen(place(context.known_layers(), context.batch, options.threshold), options)


SPEC = StrategySpec(
    NAME,
    "the last layers live at a server, which gets activations; only the first layers' gradients are summed",
    plan,
    trainer,
    mechanism="ps",
    options=Options,
    own_messages=True,
    servers=servers,
    serve=serve,
    shares_hosts=True,
)
