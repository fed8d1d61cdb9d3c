"""The declaration of a pipeline strategy. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.pipelines.pipeline_options import AnyPipelineOptions
from hostlib.strategies.common.pipeline_plan import pipeline_plan
from hostlib.strategies.plan import Plan, PlanContext
from hostlib.strategies.strategy_spec import StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext


def pipeline_spec(name: str, summary: str, options: type) -> StrategySpec:
    """Declare a pipeline strategy.

    Args:
        options: one of AnyPipelineOptions.
    """

    def trainer(context: TrainerContext, chosen: AnyPipelineOptions) -> Trainer:
        from hostlib.strategies.common.pipeline_trainer import PipelineTrainer

        return PipelineTrainer(name, context, chosen)

    def plan(trace: Trace, context: PlanContext, chosen: AnyPipelineOptions) -> Plan:
        return pipeline_plan(name, trace, context, chosen)

    return StrategySpec(
        name,
        summary,
        plan,
        trainer,
        mechanism="ring",
        options=options,
        own_messages=True,
        refusal=_refusal,
        stages=_stages,
    )


def _stages(options: AnyPipelineOptions) -> int:
    return options.stages


def _refusal(mechanism: Mechanism) -> str | None:
    return "each stage would need parameter servers of its own" if mechanism.servers else None
