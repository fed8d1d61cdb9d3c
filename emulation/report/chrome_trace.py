"""Write a cell's timeline in Chrome's trace event format, for Perfetto and chrome://tracing.

A node is a process; its computing is one thread. Overlapping communication has as many threads as needed, because
complete events of one thread must be nested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from emulation.report.plots import node_order
from emulation.report.result_files import Cell, Span, Timeline

US_PER_MS = 1000.0


def trace(cell: Cell, timeline: Timeline) -> dict[str, Any]:
    """The trace as an object, ready for JSON."""
    events: list[dict[str, Any]] = []
    for process, node in enumerate(sorted(timeline, key=node_order), start=1):
        events.append(_named("process_name", process, 0, node))
        events.append(
            {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": process}}
        )
        computing = [span for span in timeline[node] if span.kind != "communication"]
        communication = [span for span in timeline[node] if span.kind == "communication"]
        threads = [("computing", lane) for lane in lanes(computing)]
        threads += [("communication", lane) for lane in lanes(communication)]
        for thread, (kind, spans) in enumerate(threads, start=1):
            events.append(_named("thread_name", process, thread, kind))
            events += [_complete(span, process, thread) for span in spans]
    s = cell.setting
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "cell": cell.name,
            "model": s.model,
            "mechanism": cell.mechanism,
            "bandwidth_bits_s": s.bandwidth_bits_s,
            "workers": s.workers,
            "jobs": s.jobs,
            "loss": s.loss,
            "slots": s.slots,
            "delay_ns": s.delay_ns,
        },
        "traceEvents": events,
    }


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Assign spans to lanes so that those in a lane do not overlap; as few lanes as possible."""
    dealt: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start_ms, each.end_ms)):
        free = next((lane for lane in dealt if lane[-1].end_ms <= span.start_ms), None)
        if free is None:
            dealt.append([span])
        else:
            free.append(span)
    return dealt


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(span: Span, process: int, thread: int) -> dict[str, Any]:
    start, end = round(span.start_ms * US_PER_MS, 3), round(span.end_ms * US_PER_MS, 3)
    duration = round(end - start, 3)
    return {"name": span.name, "cat": span.kind, "ph": "X", "ts": start, "dur": duration, "pid": process, "tid": thread}
