"""Import traces from the output of torch.profiler (Kineto), in Chrome's format.

A gradient is ready when autograd accumulates it (`torch::autograd::AccumulateGrad`); on a GPU, when the kernels
launched until then are done. A layer is what autograd evaluates up to the gradients of one function, with preceding
functions that have none. Its forward operations have the same sequence numbers.

The profiler must have recorded shapes (`record_shapes=True`): they give the parameters' sizes. Torch-free.
"""

from __future__ import annotations

import gzip
import math
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.system.user_file import parse_json, read_bytes
from hostlib.traces.trace import Event, Layer, Parameter, Trace

FUNCTION = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
STEP = "ProfilerStep#"
BYTES = {"float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2}
MOST_BYTES = 1 << 30  # size limit, enough for a profile of a long run
NS_PER_US = 1000


class KinetoError(HostlibError):
    """A profile that cannot be read; names file, event and field."""

    def __init__(self, file: str, index: int, field_: str, problem: str) -> None:
        self.file, self.index, self.field = file, index, field_
        super().__init__(f"{file}, traceEvents[{index}], {field_}: {problem}")


@dataclass(frozen=True, slots=True)
class _Span:
    """A complete event, in microseconds."""

    index: int
    name: str
    category: str
    start: float
    end: float
    args: dict[str, Any]


@dataclass(slots=True)
class _Group:
    """A layer being assembled, in the order of the backward pass."""

    sequences: list[int] = field(default_factory=list)
    gradients: list[_Span] = field(default_factory=list)


def import_profile(path: Path) -> Trace:
    """Import the last complete step of a profile as a trace.

    Raises:
        KinetoError: something in it is malformed or missing.
        HostlibError: it cannot be read, or is not a profile of training.
    """
    spans = _in_last_step(_spans(path))
    backward = sorted((s for s in spans if s.name.startswith(FUNCTION) or s.name == ACCUMULATE), key=lambda s: s.start)
    groups = _groups(backward)
    if not groups:
        raise HostlibError(f"{path}: not a profile of training: no gradient is accumulated ({ACCUMULATE})")
    ready = _ready(spans, [span for group in groups for span in group.gradients])
    started = next(s.start for s in backward if s.name.startswith(FUNCTION))
    forward = _forward_us(spans, groups, started)
    layers: list[Layer] = []
    parameters: list[list[Parameter]] = []
    events: list[Event] = []
    zero, before = None, started
    for number, (group, forward_us) in enumerate(zip(groups, forward, strict=True)):
        name = f"layer{len(groups) - 1 - number}"
        first = ready[group.gradients[0].index]
        zero = first if zero is None else zero
        layers.append(Layer(name, _ns(forward_us), _ns(first - before)))
        before = first
        mine = [Parameter(f"{name}/{i}", _bytes(path, span), name) for i, span in enumerate(group.gradients)]
        events += [
            Event(_ns(ready[span.index] - zero), p.name, p.bytes, "worker0", "server0")
            for span, p in zip(group.gradients, mine, strict=True)
        ]
        parameters.append(mine)
    ordered = [p for mine in reversed(parameters) for p in mine]
    events += [Event(0, p.name, p.bytes, "server0", "worker0") for p in ordered]
    return Trace(tuple(reversed(layers)), tuple(ordered), tuple(events))


def _ns(us: float) -> int:
    return max(0, round(us * NS_PER_US))


def _spans(path: Path) -> list[_Span]:
    try:
        raw = read_bytes(path, MOST_BYTES)
        parsed = parse_json(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except OSError as error:
        raise HostlibError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise HostlibError(f"{path} is not JSON: {error}") from None
    events = parsed.get("traceEvents") if isinstance(parsed, dict) else parsed
    if not isinstance(events, list):
        raise HostlibError(f"{path} has no traceEvents: not a Chrome trace")
    spans = []
    for index, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        for name in ("ts", "dur"):
            value = event.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise KinetoError(str(path), index, name, f"must be a number of microseconds, not {value!r}")
        if event["dur"] < 0:
            raise KinetoError(str(path), index, "dur", f"must be 0 or more, not {event['dur']}")
        args = event.get("args")
        spans.append(
            _Span(
                index,
                str(event.get("name", "")),
                str(event.get("cat", "")),
                event["ts"],
                event["ts"] + event["dur"],
                args if isinstance(args, dict) else {},
            )
        )
    return spans


def _in_last_step(spans: list[_Span]) -> list[_Span]:
    """Spans of the last step with gradients, as marked by the profiler; else from the last forward pass on."""
    steps = [s for s in spans if s.name.startswith(STEP) and s.category != "gpu_user_annotation"]
    for step in sorted(steps, key=lambda s: s.start, reverse=True):
        inside = [s for s in spans if step.start <= s.start < step.end or s.category == "kernel"]
        if any(s.name == ACCUMULATE for s in inside):
            return inside
    began, evaluated_until, summed = -math.inf, -math.inf, False
    pending = began
    for span in sorted(spans, key=lambda s: s.start):
        if span.name.startswith(FUNCTION):
            evaluated_until = max(evaluated_until, span.end)
        if span.name == ACCUMULATE:
            summed, began = True, pending
        elif summed and _sequence(span) is not None and span.start >= evaluated_until:
            summed, pending = False, span.start
    return [s for s in spans if s.start >= began or s.category == "kernel"]


def _sequence(span: _Span) -> int | None:
    """The sequence number of a forward operation that autograd records."""
    number = span.args.get("Sequence number")
    return number if isinstance(number, int) and number >= 0 and not span.name.startswith(FUNCTION) else None


def _groups(backward: list[_Span]) -> list[_Group]:
    """Group spans into layers, in the order of the backward pass."""
    groups: list[_Group] = []
    group, seen = _Group(), set()
    for span in backward:
        if span.name == ACCUMULATE:
            group.gradients.append(span)
        elif ACCUMULATE not in span.name:
            # A view of a weight (TBackward0 of a linear layer) occurs between its gradients and does not end the layer.
            if group.gradients and not span.name.removeprefix(FUNCTION).startswith("TBackward"):
                groups.append(group)
                group = _Group()
            number = span.args.get("Sequence number")
            if isinstance(number, int) and number not in seen:
                seen.add(number)
                group.sequences.append(number)
    return [*groups, group] if group.gradients else groups


def _ready(spans: list[_Span], gradients: list[_Span]) -> dict[int, float]:
    """When each gradient is ready: with its kernels, if there are any."""
    kernels = {s.args.get("correlation"): s.end for s in spans if s.category == "kernel"}
    launches = sorted(
        (s.start, kernels[s.args["correlation"]])
        for s in spans
        if s.category in ("cuda_runtime", "cuda_driver") and s.args.get("correlation") in kernels
    )
    starts, ends = [start for start, _ in launches], [end for _, end in launches]
    for i in range(1, len(ends)):
        ends[i] = max(ends[i], ends[i - 1])
    ready = {}
    for span in gradients:
        launched = bisect_right(starts, span.end)
        ready[span.index] = max(span.end, ends[launched - 1]) if launched else span.end
    return ready


def _forward_us(spans: list[_Span], groups: list[_Group], until: float) -> list[float]:
    """Each group's share of the forward pass: from its first operation to that of the next layer."""
    first: dict[int, float] = {}
    for span in spans:
        number = _sequence(span)
        if number is not None and span.start < until:
            first[number] = min(span.start, first.get(number, math.inf))
    starts = []
    for group in groups:
        known = [first[number] for number in group.sequences if number in first]
        starts.append(min(known, default=math.nan))
    shares, end = [], until
    for start in starts:
        shares.append(0.0 if math.isnan(start) else max(0.0, end - start))
        end = end if math.isnan(start) else min(end, start)
    return shares


def _bytes(path: Path, span: _Span) -> int:
    shapes, types = span.args.get("Input Dims"), span.args.get("Input type")
    if not shapes or not isinstance(shapes[0], list):
        raise KinetoError(
            str(path), span.index, "Input Dims", "is missing: the profiler must record shapes (record_shapes=True)"
        )
    kind = types[0] if types else "float"
    if kind not in BYTES:
        raise KinetoError(str(path), span.index, "Input type", f"{kind!r} is not one of {', '.join(BYTES)}")
    return max(1, math.prod(shapes[0])) * BYTES[kind]
