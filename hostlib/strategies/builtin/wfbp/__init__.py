"""wfbp: wait-free backpropagation. Source: "Poseidon", section 3.1, algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.plan import Plan, PlanContext
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "wfbp"


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.builtin.wfbp.wfbp_trainer import WaitFree

    return WaitFree(context)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    return Plan(trace)


SPEC = StrategySpec(
    NAME,
    "wait-free backpropagation: buckets are summed while the backward pass goes on",
    plan,
    trainer,
    only_timing=True,
)
