"""What the papers' simulations and testbeds mean by a network and a workload, said explicitly.

Whole tensors are sent as soon as they are ready, one after the other on a link; headers, slots, message overheads and
buckets do not exist. The runtime differs in all of these.
"""

from __future__ import annotations

from hostlib.strategies.plan import Plan
from hostlib.traces.trace import Trace
from simulation.simulator.network import Network
from simulation.simulator.workload import Workload, of_plan


def papers_network(bits_s: float, whole_sums: bool = False) -> Network:
    """A star of links of this rate that carry whole tensors.

    Args:
        whole_sums: a switch has a tensor's whole sum before it sends any of it; otherwise sums stream.
    """
    return Network(
        bits_s,
        latency_ns=0,
        overhead_ns=0,
        store_and_forward=False,
        store_and_aggregate=whole_sums,
        slots=0,
        turn_bytes=0,
        window_bytes=0,
        efficiency=1.0,
        frame_bytes=0,
    )


def papers_workload(trace: Trace | Plan) -> Workload:
    """Whole tensors, neither split into messages nor put into buckets."""
    plan = trace if isinstance(trace, Plan) else Plan(trace)
    return of_plan(plan, message_bytes=0, bucket_bytes=0)
