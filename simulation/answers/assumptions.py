"""What an answer assumes, each with its source."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from hostlib.topology.topology import Topology
from hostlib.traces.trace import Trace
from simulation.answers import perturbation
from simulation.answers.answer import Assumptions
from simulation.experiments.scenario import PAPERS, Scenario
from simulation.models.compute import BACKWARD_SHARE
from simulation.models.host_links import find_host_link
from simulation.models.measured_links import MEASURED_BY, MeasuredLinks
from simulation.predictors.calibration import Calibration

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
        "workers": _assumed(scenario.workers * scenario.gpus_per_host, source("workers")),
        "bandwidth": _assumed(f"{bandwidth} for every host, each way", source("bandwidth")),
        "latency": _assumed(f"{latency} from host to host", source("latency")),
    }
    if network.topology is not None:
        switches = len(network.topology.switches)
        found["topology"] = _assumed(f"{switches} switch{'es' if switches > 1 else ''}", source("topology"))
    elif network.declaration is not None:
        found["topology"] = _assumed(_described(scenario.topology()), source("topology", source("spines")))
        if any(cable.parallel > 1 for cable in scenario.topology().cables):
            text = "a stream between two hosts uses one by a hash of its hosts; the first spine sums"
            found["uplinks"] = _assumed(text, "equal-cost multipath, RFC 2992; docs/adr/0016")
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
        bucket = (
            f"{semantics.bucket_bytes / 2**20:g} MiB" if semantics.bucket_bytes else "none: each gradient by itself"
        )
        otherwise = "--message" if "message" in given else "DDP's bucket_cap_mb"
        if not scenario.subject.bare:
            found["buckets"] = _assumed(bucket, source("bucket", otherwise))
            found["overlap"] = _assumed("the next forward pass begins when all is summed", "DDP")
        if math.isfinite(semantics.recirculation_bits_s):
            text = f"{semantics.recirculation_bits_s / 1e9:g} Gbit/s, which all jobs' sums on a switch share"
            found["recirculation"] = _assumed(text, source("recirculation"))
        slots = semantics.slots or "any number"
        found["slots"] = _assumed(slots, source("slots", "default of `controller start`"))
        framing = semantics.framing
        (values, frame), (payload, segment) = framing.slot_frame(semantics.elements), framing.tcp_segment()
        text = (
            f"{payload} of {segment} bytes are values in TCP, besides acknowledgements; {values} of {frame} in the slot "
            f"protocol ({framing.name} frames)"
        )
        found["headers"] = _assumed(
            text if semantics.headers else "none", source("headers", "IEEE 802.3, RFC 7323, docs/protocol.md")
        )
    widths = (
        f"computing {_percent(perturbation.COMPUTE_SD)}, each step {_percent(perturbation.STEP_JITTER)}, links "
        f"{_percent(perturbation.RATE_SD)}, the simulator {_percent(perturbation.MODEL_SD)} (standard deviations)"
    )
    found["intervals"] = _assumed(widths, "measured against emulation, docs/measurements/simulator-accuracy.md")
    return found


def of_links(measured: MeasuredLinks | None) -> Assumptions:
    """Of hosts' links, if they were measured; in place of what of_network says."""
    if measured is None:
        return {}
    source = f"{measured.path}, {MEASURED_BY}"
    narrow = measured.narrow_text
    return {
        "bandwidth": _assumed(measured.bandwidth_text, source),
        "latency": _assumed(measured.latency_text, source),
        **({} if narrow is None else {"slow pairs": _assumed(narrow, source)}),
    }


def of_calibration(calibration: Calibration | None, file: object) -> Assumptions:
    """Of what intervals follow from, if measured times say it; in place of what is assumed.

    Args:
        file: of the calibration, as the user wrote it.
    """
    if calibration is None:
        return {}
    groups = ", ".join(
        f"{name} {each.low:.2f} to {each.high:.2f} ({each.cells} cells)" for name, each in calibration.groups.items()
    )
    text = f"measured over predicted times, {calibration.coverage:.0%} of cells: {groups}"
    return {"intervals": _assumed(text, str(file))}


def of_pipelines(scenarios: Collection[Scenario]) -> Assumptions:
    """Of pipelines, if cells have any."""
    if all(each.choice.strategy.stages == 1 for each in scenarios):
        return {}
    cuts = "the model is cut by its layers' times where one tensor goes on; a micro-batch takes its share of the batch's time"
    return {"pipelines": _assumed(cuts, "docs/strategies.md")}


def of_hosts(scenario: Scenario, host_link: str, given: Collection[str]) -> Assumptions:
    """Of a cell's hosts.

    Args:
        host_link: as the user wrote it.
        given: names of options that the user gave.
    """
    if scenario.gpus_per_host == 1:
        return {}
    link = find_host_link(host_link)
    source = f"{DEFAULT}; {link.source}" if "host_link" not in given else link.source
    local = "a ring's reduce-scatter before the network, its all-gather after it"
    hosts = "host" if scenario.workers == 1 else "hosts"
    return {
        "hosts": _assumed(f"{scenario.workers} {hosts} of {scenario.gpus_per_host} GPUs", "--gpus-per-host"),
        "host link": _assumed(f"{link.gb_s:g} GB/s each way of each GPU", source),
        "within hosts": _assumed(local, "nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n tensors of each GPU"),
    }


def of_cores(scenario: Scenario, file: object, given: Collection[str]) -> Assumptions:
    """Of what a cell's hosts let through.

    Args:
        file: of the costs, as the user wrote it.
        given: names of options that the user gave.
    """
    rates = scenario.host_rates
    if rates is None:
        return {"host costs": _assumed("none: hosts keep up with their links", "assumed")}
    costs, semantics = rates.costs, scenario.semantics
    slots_gbit = rates.slot_bits_s(semantics.framing.slot_frame(semantics.elements)[0]) / 1e9
    text = (
        f"{slots_gbit:.3g} Gbit/s of values in the slot protocol, {rates.tcp_bits_s / 1e9:.3g} Gbit/s in TCP, "
        f"{costs.add_gb_s:.3g} GB/s of sums"
    )
    cores = "--cores" if "cores" in given else f"as {file} has"
    return {
        "host costs": _assumed(text, f"{file}: {costs.cpu}, {costs.date}"),
        "cores": _assumed(f"{rates.lanes} for the slot protocol, one for TCP and sums", cores),
    }


def of_computing(model: str | None, trace: Any, scenario: Scenario, given: Collection[str]) -> Assumptions:
    """Of what is computed and how fast.

    Args:
        model, trace: the names that the user gave, of which one may be absent.
    """
    subject = scenario.subject
    if subject.bare:
        return {"size": _assumed(f"{subject.trace.bytes} bytes", "--size" if "size" in given else DEFAULT)}
    forward_ns, backward_ns = _times_ns(subject.trace)
    times = f"{forward_ns / 1e6:.1f} ms forward, {backward_ns / 1e6:.1f} ms backward"
    known = subject.assumptions
    computing = [known[name].source for name in ("forward_s", "backward_s")]
    found = {
        "model": _assumed(str(model if model is not None else trace), "--trace" if model is None else "--model"),
        "layers": _assumed(len(subject.trace.layers), known["model"].source),
    }
    if "input" in known:
        found["input"] = known["input"].as_json()
    found["gradients"] = _assumed(f"{subject.trace.bytes / 1e6:.1f} MB", known["gradients_bytes"].source)
    if "batch" in known:
        found["batch"] = _assumed(f"{subject.batch} examples per worker", known["batch"].source)
    if "tflops" in known:
        found["rate"] = _assumed(f"{float(known['tflops'].value):.4g} TFLOP/s", known["tflops"].source)
    found["computing"] = _assumed(times, "; ".join(dict.fromkeys(computing)))
    return found


def computing_speed(scenario: Scenario) -> float | None:
    """TFLOP/s of a worker, as --tflops has it; None if the model's operations are unknown."""
    subject = scenario.subject
    flops, seconds = subject.trace.flops, sum(_times_ns(subject.trace)) / 1e9
    if subject.bare or not flops or not seconds:
        return None
    return (1 + BACKWARD_SHARE) * subject.batch * flops / seconds / 1e12


def _described(topology: Topology) -> str:
    uplinks = [cable for cable in topology.cables if cable.lower in topology.switches]
    if not uplinks:
        return "one switch"
    several = max(cable.parallel for cable in uplinks)
    each = f", up to {several} uplinks each" if several > 1 else ""
    return f"{len(topology.switches)} switches{each}"


def _times_ns(trace: Trace) -> tuple[float, float]:
    """Of the passes; the mean of a trace's workers."""
    last = [max((event.time_ns for event in trace.aggregation(name)), default=0) for name in trace.workers]
    return float(sum(layer.forward_ns for layer in trace.layers)), trace.lead_ns + sum(last) / len(last)


def _assumed(value: object, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
