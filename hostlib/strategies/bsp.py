"""bsp: bulk synchronous. Source: "Poseidon", section 2.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.plan import Plan, Situation, gradients
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "bsp"
SUMMARY = "everything is summed in one piece after the backward pass"


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.bsp import BulkSynchronous

    return BulkSynchronous(setting)


def plan(trace: Trace, situation: Situation) -> Plan:
    return Plan(trace, chunks=(gradients(trace),))
