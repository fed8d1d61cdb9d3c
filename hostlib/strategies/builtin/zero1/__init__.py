"""zero1: each rank keeps, and updates with, a shard of the optimiser's state. Source: Rajbhandari et al. 2020, "ZeRO".

An iteration's plan begins with the all-gather that ends the one before, so that it ends with the reduce-scatters. The
trainer's steps end with it: their weights are whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.common.sharded_plan import refusal, summing
from hostlib.strategies.plan import Plan, PlanContext, WeightGather, gradients
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "zero1"


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.builtin.zero1.zero1_trainer import ShardedOptimiser

    return ShardedOptimiser(context)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    gather = WeightGather("weights", gradients(trace), 0, 0)
    return Plan(trace, summing=summing(context.mechanism), gathers=(gather,))


SPEC = StrategySpec(
    NAME,
    "ZeRO-1: buckets are reduce-scattered, ranks update a shard of the weights each, and gather them",
    plan,
    trainer,
    refusal=refusal,
    sharded=True,
)
