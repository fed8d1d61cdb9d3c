"""An experiment's folder as `emulation run` leaves it, with numbers of the simulator's.

What stands for the emulation is played with latency, a cost of each message and jitter; what stands beside it as the
simulation, without. `python -m tests.unit.emulation.report.example_experiment FOLDER` makes a large one to look at.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hostlib.mechanisms.mechanism import find
from hostlib.text import units
from simulation.models.synthetic_trace import model_trace
from simulation.simulator.network import Network
from simulation.simulator.play import Job, Played, play
from simulation.simulator.workload import Variation, Workload, of_trace

LIBRARIES = {"gloo": "ring"}  # a library's own has no schedule: what stands for it here
CARRIED_BITS_S = 12e9  # by the switch at no dilation; more, and it is the bottleneck
ITERATIONS = 3

Row = dict[str, Any]


def write_experiment(
    folder: Path,
    models: Sequence[str] = ("alexnet",),
    mechanisms: Sequence[str] = ("inagg+mcast", "ring", "ps"),
    bandwidths: Sequence[str] = ("25gbit",),
    workers: Sequence[int] = (4,),
    dilation: float = 50.0,
    finished: bool = True,
    title: str = "AlexNet on one switch",
) -> list[Row]:
    """Write it all; returns what is in results.json."""
    (folder / "cells").mkdir(parents=True)
    rows = []
    for model, bandwidth, count, mechanism in product(models, bandwidths, workers, mechanisms):
        row, cell = _cell(model, mechanism, count, bandwidth, dilation)
        rows.append(row)
        (folder / "cells" / f"{row['cell']}.json").write_text(json.dumps(cell))
    (folder / "results.json").write_text(json.dumps(rows, indent=1))
    (folder / "run.json").write_text(json.dumps(_run(title, finished), indent=1))
    lists = {"models": models, "mechanisms": mechanisms, "bandwidths": bandwidths, "workers": workers}
    (folder / "experiment.toml").write_text("".join(f"{key} = {json.dumps(list(v))}\n" for key, v in lists.items()))
    return rows


def _cell(model: str, mechanism: str, workers: int, bandwidth: str, dilation: float) -> tuple[Row, Row]:
    workload = of_trace(model_trace(model), 4 << 20)
    schedule = find(LIBRARIES.get(mechanism, mechanism))
    rate = units.bandwidth(bandwidth)
    ideal = play(Network(rate), [Job(workload, schedule, workers)])
    seen = [
        play(Network(rate, 20_000, 30_000), [Job(workload, schedule, workers, variation=Variation(0.2, {}, seed))])
        for seed in range(1, ITERATIONS + 1)
    ]
    times = [played.outcomes[0].iteration_s * 1e3 for played in seen]
    carried = sum(sent + received for sent, received in ideal.link_bytes.values())
    load = carried * 8 / np.median(times) * 1e3 / dilation / CARRIED_BITS_S
    need = dilation * load
    name = f"{model}-{mechanism}-{bandwidth}-{workers}".replace("/", "-")
    row = {
        "cell": name,
        "model": model,
        "mechanism": mechanism,
        "workers": workers,
        "bandwidth": bandwidth,
        "jobs": 1,
        "dilation": dilation,
        "iteration_ms": float(np.median(times)),
        "iteration_ms_spread": max(times) - min(times),
        "simulated_ms": None if mechanism in LIBRARIES else ideal.outcomes[0].iteration_s * 1e3,
        "valid": bool(load < 1),
        "bottleneck": None if load < 1 else f"the switch was busy all the time: a dilation of {need:.0f} would do",
        "bytes_per_node": {
            node: {"sent": sent, "received": received} for node, (sent, received) in ideal.link_bytes.items()
        },
        "retransmits": 0,
        "marked": 7,
        "cpu": {"switch": min(1.0, float(load)), "machine": min(1.0, 0.2 + 0.7 * float(load))},
        "loss": 0.0,
    }
    cell = {"cell": name, "iterations_ms": times, "timeline": _timeline(workload, seen[0], workers), "links": {}}
    return row, cell


def _timeline(workload: Workload, played: Played, workers: int) -> dict[str, list[Row]]:
    """What each node did: a worker's passes, and each gradient from being ready to being everywhere."""
    outcome = played.outcomes[0]
    nodes: dict[str, list[Row]] = {}
    for rank in range(workers):
        which = rank % len(outcome.forward_end_ns[-1])
        forward_end, backward_end = outcome.forward_end_ns[-1][which], outcome.backward_end_ns[-1][which]
        steps = np.cumsum(workload.backward_ns[0]) / max(1, workload.backward_ns[0].sum())
        ready = forward_end + steps * (backward_end - forward_end)
        spans = [
            _span("forward", "forward", max(0.0, forward_end - workload.forward_ns.sum()), forward_end),
            _span("backward", "backward", forward_end, backward_end),
        ]
        for time, tensors in zip(ready, workload.released, strict=True):
            for t in tensors:
                name, distributed = workload.tensors[t].name, outcome.delivered_ns[0][t]
                if distributed:  # by servers, before the forward pass
                    spans.append(_span("communication", name, 0, distributed))
                done = max(time, outcome.delivered_ns[-1][t], outcome.reduced_ns[-1][t])
                spans.append(_span("communication", name, time, done))
        nodes[f"worker{rank}"] = spans
    for node in (name for name in played.link_bytes if name.startswith("server")):
        nodes[node] = [
            _span("communication", "parameters", 0, max(outcome.delivered_ns[0])),
            _span("communication", "sums", outcome.forward_end_ns[-1][0], max(outcome.reduced_ns[-1])),
        ]
    return nodes


def _span(kind: str, name: str, start_ns: float, end_ns: float) -> Row:
    return {"kind": kind, "name": name, "start_ms": float(start_ns) / 1e6, "end_ms": float(end_ns) / 1e6}


def _run(title: str, finished: bool) -> Row:
    return {
        "experiment": "example",
        "title": title,
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-01T10:21:07+00:00" if finished else None,
        "versions": {"netfold": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "linux": "6.1.0", "p4 compiler": "1.2"},
        "machine": {"cpu": "example CPU", "cores": 2, "memory_gib": 24},
        "seed": 7,
        "realisation": "netns",
        "switch": "embedded",
        "topology": {"kind": "star", "delay": "20us"},
        "replay": {"iterations": ITERATIONS, "warm_up": 2, "bucket_bytes": 4 << 20, "shrink": 1},
    }


if __name__ == "__main__":
    write_experiment(
        Path(sys.argv[1]),
        ("alexnet", "overfeat", "vgg16", "googlenet"),
        ("inagg+mcast", "inagg+mcast:via_server=yes:servers=4", "inagg:servers=4:assign=even", "mcast", "ring",
         "butterfly", "halving-doubling", "ps:servers=4", "gloo"),
        ("10gbit", "25gbit", "100gbit"),
        (4, 16, 32),
        title="Four convolutional networks on one switch, with help from the fabric and without",
    )  # fmt: skip
