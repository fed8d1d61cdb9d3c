"""What an answer assumes, each with its source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hostlib.protocol.header import frame_bytes
from hostlib.traces.trace import Trace
from simulation.answers import perturbation
from simulation.answers.answer import Assumptions
from simulation.experiments.scenario import PAPERS, TCP_FRAME, TCP_PAYLOAD, Scenario
from simulation.models import published_times
from simulation.models.synthetic_trace import BACKWARD_SHARE, DEFAULT_TFLOPS

DEFAULT = "default"


def of_network(scenario: Scenario, bandwidth: str, latency: str, given: Collection[str]) -> Assumptions:
    """Of a cell's network and of how it is played.

    Args:
        bandwidth, latency: as the user wrote them.
        given: names of options that the user gave.
    """
    network, semantics = scenario.network, scenario.semantics

    def source(name: str, otherwise: str = DEFAULT) -> str:
        option = f"--{name.replace('_', '-')}"
        return option if name in given else otherwise

    found = {
        "workers": _assumed(scenario.workers, source("workers")),
        "bandwidth": _assumed(f"{bandwidth} for every host, each way", source("bandwidth")),
        "latency": _assumed(f"{latency} from host to host", source("latency")),
    }
    if network.topology is not None:
        switches = len(network.topology.switches)
        found["topology"] = _assumed(f"{switches} switch{'es' if switches > 1 else ''}", source("topology"))
    elif network.racks > 1:
        text = f"{network.racks} racks, uplinks oversubscribed {network.oversubscription:g} times"
        found["topology"] = _assumed(text, source("racks"))
    else:
        found["topology"] = _assumed("one switch", source("racks"))
    if scenario.jobs > 1:
        found["jobs"] = _assumed(f"{scenario.jobs} at once; the slowest counts", source("jobs"))
    if semantics == PAPERS:
        paper = "'How to Train your DNN', section 5"
        found["semantics"] = _assumed("whole tensors, no headers, no limit of slots", source("semantics", paper))
    else:
        values, frame = frame_bytes()
        bucket = (
            f"{semantics.bucket_bytes / 2**20:g} MiB" if semantics.bucket_bytes else "none: each gradient by itself"
        )
        otherwise = "--message" if "message" in given else "DDP's bucket_cap_mb"
        if not scenario.subject.bare:
            found["buckets"] = _assumed(bucket, source("bucket", otherwise))
            found["overlap"] = _assumed("the next forward pass begins when all is summed", "DDP")
        slots = semantics.slots or "any number"
        found["slots"] = _assumed(slots, source("slots", "default of `controller start`"))
        text = f"{TCP_PAYLOAD} of {TCP_FRAME} bytes are values in TCP, {values} of {frame} in the slot protocol"
        found["headers"] = _assumed(text if semantics.headers else "none", source("headers", "docs/protocol.md"))
    widths = (
        f"computing {_percent(perturbation.COMPUTE_SD)}, each step {_percent(perturbation.STEP_JITTER)}, links "
        f"{_percent(perturbation.RATE_SD)}, the simulator {_percent(perturbation.MODEL_SD)} (standard deviations)"
    )
    found["intervals"] = _assumed(widths, "measured against emulation, docs/measurements/simulator-accuracy.md")
    return found


def of_computing(
    model: str | None, trace: Any, scenario: Scenario, options: Mapping[str, Any], given: Collection[str]
) -> Assumptions:
    """Of what is computed and how fast.

    Args:
        model, trace: the names that the user gave, of which one may be absent.
    """
    subject = scenario.subject
    if subject.bare:
        return {"size": _assumed(f"{subject.trace.bytes} bytes", "--size" if "size" in given else DEFAULT)}
    forward_ns, backward_ns = _times_ns(subject.trace)
    times = f"{forward_ns / 1e6:.1f} ms forward, {backward_ns / 1e6:.1f} ms backward"
    found = {
        "model": _assumed(str(model if model is not None else trace), "--trace" if model is None else "--model"),
        "gradients": _assumed(f"{subject.trace.bytes / 1e6:.1f} MB", "the model's parameters, 4 bytes each"),
    }
    if model is None:
        return {**found, "computing": _assumed(times, "the trace")}
    if {"forward", "backward"} & set(given):
        source = "--forward, --backward"
    elif "tflops" in given:
        source = f"operations at {options['tflops']:g} TFLOP/s (--tflops), backward {BACKWARD_SHARE:g} times forward"
    elif model in published_times.COMPUTE_S:
        source = "published: 'How to Train your DNN', table 3"
    else:
        source = f"operations at {DEFAULT_TFLOPS:g} TFLOP/s (default), backward {BACKWARD_SHARE:g} times forward"
    batch = _assumed(f"{subject.batch} examples per worker", "--batch" if "batch" in given else DEFAULT)
    return {**found, "batch": batch, "computing": _assumed(times, source)}


def computing_speed(scenario: Scenario, options: Mapping[str, Any]) -> float | None:
    """TFLOP/s of a worker, as --tflops has it; None if the model's operations are unknown."""
    subject = scenario.subject
    flops = sum(layer.flops for layer in subject.layers)
    if subject.bare or not flops:
        return None
    if options.get("tflops") is not None and not (options.get("forward") or options.get("backward")):
        return float(options["tflops"])
    seconds = sum(_times_ns(subject.trace)) / 1e9
    return (1 + BACKWARD_SHARE) * subject.batch * flops / seconds / 1e12 if seconds else None


def _times_ns(trace: Trace) -> tuple[float, float]:
    """Of the passes; the mean of a trace's workers."""
    last = [max((event.time_ns for event in trace.aggregation(name)), default=0) for name in trace.workers]
    return float(sum(layer.forward_ns for layer in trace.layers)), trace.lead_ns + sum(last) / len(last)


def _assumed(value: object, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
