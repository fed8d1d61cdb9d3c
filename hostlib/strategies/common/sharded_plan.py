"""What strategies with sharded weights or optimiser states ask of a mechanism. Torch-free.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", sections 5 and 7.
"""

from __future__ import annotations

from hostlib.mechanisms.mechanism import Mechanism
from hostlib.schedules.contract import Collective


def refusal(mechanism: Mechanism) -> str | None:
    """Why weights cannot be gathered with it; None if they can."""
    if Collective.ALL_GATHER not in mechanism.collectives:
        return "it has no all-gather of the weights"
    if mechanism.servers or mechanism.of(Collective.ALL_GATHER).servers:
        return "its servers serve all-reduces only"
    if not mechanism.of(Collective.ALL_GATHER).runs_on_hosts:
        return "hosts cannot run its all-gather"
    return None


def summing(mechanism: Mechanism) -> Collective:
    """The collective that sums gradients: a reduce-scatter, or an all-reduce where the mechanism has none."""
    can = Collective.REDUCE_SCATTER in mechanism.collectives
    return Collective.REDUCE_SCATTER if can else Collective.ALL_REDUCE


def hosts_reduce_scatter(mechanism: Mechanism) -> bool:
    """Whether hosts can run the mechanism's reduce-scatter; otherwise a rank takes its part of an all-reduce."""
    if summing(mechanism) is not Collective.REDUCE_SCATTER:
        return False
    does = mechanism.of(Collective.REDUCE_SCATTER)
    return does.runs_on_hosts and not does.servers
