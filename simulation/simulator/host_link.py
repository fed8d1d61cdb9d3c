"""Sums within hosts of several GPUs, over the link between them.

A bucket is reduce-scattered among a host's GPUs before the network has it, and all-gathered after. The host's link does
one of these at a time, reduce-scatters first. It never idles while one of them could go on, so the time at which it has
done all of them does not depend on their order: it follows from when each could begin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulation.simulator.workload import Workload


def steps_ps(workload: Workload, ps_per_byte: float) -> NDArray[np.int64]:
    """How long the host's link takes for what each step of the backward pass releases, int64 (steps,)."""
    sizes = [sum(workload.tensors[tensor].bytes for tensor in step) for step in workload.released]
    times: NDArray[np.int64] = np.rint(np.array(sizes, float) * ps_per_byte).astype(np.int64)
    return times


def delayed(backward_ps: NDArray[np.int64], local_ps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Steps that end when what they release is reduce-scattered, rather than computed.

    Args:
        backward_ps: (rows, steps); local_ps: of steps_ps.

    Returns:
        int64 (rows, steps)
    """
    ready = np.cumsum(backward_ps, axis=1)
    ends = np.empty_like(ready)
    end = np.zeros(len(ready), np.int64)
    for step, local in enumerate(local_ps):
        end = np.maximum(end, ready[:, step]) + local
        ends[:, step] = end
    made: NDArray[np.int64] = np.diff(ends, axis=1, prepend=0)
    return made


def last_gathered_ps(
    ready_ps: NDArray[np.float64],
    local_ps: NDArray[np.int64],
    delivered_ps: NDArray[np.float64],
    gather_ps: NDArray[np.float64],
) -> float:
    """When the slowest host's link has done all reduce-scatters and all-gathers of an iteration.

    Args:
        ready_ps: (hosts, steps): when each step's gradients are computed; local_ps: of steps_ps.
        delivered_ps: (tensors,): when the network has delivered each sum; gather_ps: how long its all-gather takes.
    """
    hosts = len(ready_ps)
    begins = np.concatenate([ready_ps, np.tile(delivered_ps, (hosts, 1))], axis=1)
    work = np.tile(np.concatenate([local_ps, gather_ps]), (hosts, 1))
    order = np.argsort(begins, axis=1, kind="stable")
    begins, work = (np.take_along_axis(each, order, axis=1) for each in (begins, work))
    # All is done when the last busy period ends: it began at one of these times, with all work from then on before it.
    remaining = np.cumsum(work[:, ::-1], axis=1)[:, ::-1]
    return float((begins + remaining).max())
