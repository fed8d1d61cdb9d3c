"""Measure how much communication the backward pass hides, and write a Chrome trace that shows it. Torch-free.

All times are time.perf_counter_ns(). docs/torch.md describes what is measured and what is not.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NS_PER_MS, NS_PER_US = 1e6, 1e3
CATEGORY = "communication"


@dataclass(slots=True)
class Span:
    """One bucket in flight: from when its gradients are ready until their average is available."""

    bucket: int
    size_bytes: int
    begin_ns: int
    done_ns: int = 0

    @property
    def name(self) -> str:
        return f"allreduce bucket {self.bucket} ({self.size_bytes / 1e6:.3g} MB)"


@dataclass(slots=True)
class StepTimes:
    """One training step on this rank.

    Attributes:
        backward_end_ns: when the last gradient was computed; 0 before that.
    """

    backward_begin_ns: int = 0
    backward_end_ns: int = 0
    spans: list[Span] = field(default_factory=list)

    def backward_ended(self) -> None:
        self.backward_end_ns = time.perf_counter_ns()

    def begin(self, bucket: int, size_bytes: int) -> Span:
        """Start a bucket's span now."""
        self.spans.append(Span(bucket, size_bytes, time.perf_counter_ns()))
        return self.spans[-1]

    @property
    def communication_ns(self) -> int:
        """Time during which at least one bucket was in flight: the union of the spans."""
        total = end = 0
        for span in sorted(self.spans, key=lambda span: span.begin_ns):
            total += max(0, span.done_ns - max(span.begin_ns, end))
            end = max(end, span.done_ns)
        return total

    @property
    def exposed_ns(self) -> int:
        """Time from the end of the backward pass until all buckets were done, which the optimiser waits for."""
        return max(0, max((span.done_ns for span in self.spans), default=0) - self.backward_end_ns)


def summary(steps: Iterable[tuple[int, int]]) -> dict[str, float]:
    """Summarise many steps, given each one's communication and exposed time (nanoseconds)."""
    known = list(steps)
    return {
        "communication_ms_median": round(statistics.median(c for c, _ in known) / NS_PER_MS, 3),
        "exposed_ms_median": round(statistics.median(e for _, e in known) / NS_PER_MS, 3),
        "overlap": round(statistics.median(1 - e / c if c else 0.0 for c, e in known), 4),
    }


def write_trace(exported: Path, path: Path, rank: int, marks: dict[str, int], steps: list[StepTimes]) -> None:
    """Add a rank's spans to a trace that torch.profiler exported, and write both as one file.

    They are asynchronous events: several buckets are in flight at the same time, which no thread's row could show.

    Args:
        marks: name of a range in the trace -> when it was entered; they give the offset between the two clocks.

    Source: Chrome's "Trace Event Format", section "Async Events".
    """
    trace = json.loads(exported.read_text())
    events = trace["traceEvents"]
    entered = [event for event in events if event.get("ph") == "X" and event.get("name") in marks]
    # The timestamp is taken just before the range is entered, so the smallest difference is the most accurate.
    offset_us = min(event["ts"] - marks[event["name"]] / NS_PER_US for event in entered)
    pid = os.getpid()
    for event in events:
        if event.get("name") == "process_name" and event.get("pid") == pid:
            event["args"]["name"] = f"rank {rank}"
    number = 0
    for step in steps:
        ranges: list[tuple[str, int, int, dict[str, int]]] = [
            ("backward computation", step.backward_begin_ns, step.backward_end_ns, {})
        ]
        ranges += [(s.name, s.begin_ns, s.done_ns, {"bucket": s.bucket, "bytes": s.size_bytes}) for s in step.spans]
        for name, begin_ns, end_ns, arguments in ranges:
            number += 1
            common = {"cat": CATEGORY, "name": name, "id": number, "pid": pid, "tid": pid, "args": arguments}
            for phase, at_ns in (("b", begin_ns), ("e", end_ns)):
                events.append({**common, "ph": phase, "ts": at_ns / NS_PER_US + offset_us})
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(trace))
    os.replace(partial, path)
