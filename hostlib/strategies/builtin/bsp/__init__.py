"""bsp: bulk-synchronous training. Source: "Poseidon", section 2.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.plan import Plan, PlanContext, gradients
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "bsp"


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.builtin.bsp.bsp_trainer import BulkSynchronous

    return BulkSynchronous(context)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    return Plan(trace, chunks=(gradients(trace),))


SPEC = StrategySpec(
    NAME,
    "everything is summed in one piece after the backward pass",
    plan,
    trainer,
    only_timing=True,
)
