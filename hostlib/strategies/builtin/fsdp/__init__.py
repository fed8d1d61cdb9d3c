"""fsdp: each rank keeps a shard of the weights, and gathers a layer's when its passes need them.

Source: Zhao et al. 2023, "PyTorch FSDP", section 3; Rajbhandari et al. 2020, "ZeRO", section 5.3 (ZeRO-3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.strategies.common.sharded_plan import refusal, summing
from hostlib.strategies.plan import Plan, PlanContext, WeightGather, gradients
from hostlib.strategies.strategy_spec import NoOptions, StrategySpec
from hostlib.traces.trace import Trace

if TYPE_CHECKING:
    from hostlib.strategies.trainer import Trainer, TrainerContext

NAME = "fsdp"

Unit = tuple[str, ...]


def trainer(context: TrainerContext, _: NoOptions) -> Trainer:
    from hostlib.strategies.builtin.fsdp.fsdp_trainer import FullySharded

    return FullySharded(context)


def plan(trace: Trace, context: PlanContext, _: NoOptions) -> Plan:
    """A unit is a layer with weights. The next unit's weights are gathered while one computes, in both passes."""
    trained = gradients(trace)
    units = _units(trace, trained)
    forward = [layer for layer, _ in units]
    passes = [(f"{name}, forward", unit, at) for (at, unit), name in zip(units, _names(trace, forward), strict=True)]
    step = {name: len(trace.layers) + number for number, name in enumerate(trained)}
    back = sorted(units, key=lambda each: min(step[name] for name in each[1]))
    names = _names(trace, [layer for layer, _ in back])
    passes += [
        (f"{name}, backward", unit, min(step[each] for each in unit))
        for (_, unit), name in zip(back, names, strict=True)
        # The last unit's weights are still there.
        if unit != units[-1][1]
    ]
    return Plan(
        trace,
        chunks=tuple(sorted((unit for _, unit in units), key=lambda unit: max(step[name] for name in unit))),
        summing=summing(context.mechanism),
        gathers=_prefetched(passes, step[trained[0]]),
    )


def _units(trace: Trace, trained: Unit) -> list[tuple[int, Unit]]:
    """(layer's number, its trained parameters), of the layers that have any."""
    mine: dict[str, list[str]] = {}
    for p in trace.parameters:
        if p.name in trained:
            mine.setdefault(p.layer, []).append(p.name)
    return [(number, tuple(mine[each.name])) for number, each in enumerate(trace.layers) if each.name in mine]


def _names(trace: Trace, numbers: list[int]) -> list[str]:
    return [trace.layers[number].name for number in numbers]


def _prefetched(passes: list[tuple[str, Unit, int]], backward: int) -> tuple[WeightGather, ...]:
    """Gathers of (name, weights, step that needs them), each begun when the one before is needed.

    Args:
        backward: the first step of the backward pass, at which its first gather begins.
    """
    gathers: list[WeightGather] = []
    for name, unit, needed in passes:
        asked = gathers[-1].needed if gathers else 0
        if needed >= backward and asked < backward:
            asked = backward
        gathers.append(WeightGather(name, unit, asked, needed))
    return tuple(gathers)


SPEC = StrategySpec(
    NAME,
    "weights are sharded: gathered layer by layer ahead of both passes, gradients reduce-scattered behind them",
    plan,
    trainer,
    refusal=refusal,
    sharded=True,
)
