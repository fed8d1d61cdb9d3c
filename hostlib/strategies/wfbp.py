"""wfbp: wait-free backpropagation. Source: "Poseidon", section 3.1, algorithm 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostlib.plan import Plan, Situation
from hostlib.trace import Trace

if TYPE_CHECKING:
    from hostlib.training.setting import Setting, Trainer

NAME = "wfbp"
SUMMARY = "wait-free backpropagation: buckets are summed while the backward pass goes on"


def trainer(setting: Setting) -> Trainer:
    from hostlib.training.wfbp import WaitFree

    return WaitFree(setting)


def plan(trace: Trace, situation: Situation) -> Plan:
    return Plan(trace)
