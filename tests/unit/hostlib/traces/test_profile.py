"""Traces recorded from models, and read from what torch.profiler wrote."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hostlib.errors import HostlibError
from hostlib.traces.kineto import ACCUMULATE, FUNCTION, KinetoError, import_profile
from hostlib.traces.recorder import ProfileError, profile
from hostlib.traces.trace import read, write
from simulation.simulator.workload import of_trace


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


SIZES = {288, 32, 8 * 36 * 10 * 4, 40}


@pytest.mark.parametrize("kineto", [False, True])
def test_a_recorded_trace_has_the_model_s_parameters_and_can_be_played(tmp_path: Path, kineto: bool) -> None:
    trace = profile(model(), (1, 8, 8), batch=4, iterations=3, kineto=kineto)
    assert {p.bytes for p in trace.parameters} == SIZES
    assert trace.bytes == sum(4 * p.numel() for p in model().parameters())
    gradients = trace.aggregation("worker0")
    assert {gradients[0].bytes, gradients[1].bytes} == {11520, 40}  # the last layer's are ready first
    assert {gradients[-1].bytes, gradients[-2].bytes} == {288, 32}
    assert gradients[0].time_ns == 0 < gradients[-1].time_ns
    assert trace.distribution[0].bytes in (288, 32)
    assert sum(layer.forward_ns for layer in trace.layers) > 0
    assert trace.lead_ns > 0
    write(trace, tmp_path / "trace")
    assert of_trace(read(tmp_path / "trace")).bytes == trace.bytes


def test_layers_are_called_as_in_the_model_and_shared_parameters_are_sent_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)
            self.again = self.inner
            self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.frozen(self.inner(x)))

    trace = profile(Twice(), (4,), batch=2, iterations=2)
    assert [e.parameter for e in trace.aggregation("worker0")] == ["inner/weight"]
    assert [p.name for p in trace.parameters if not p.trained] == ["frozen/weight"]


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ProfileError, match=r"does not take inputs of shape \(3, 8, 8\)"):
        profile(model(), (3, 8, 8), batch=1)
    with pytest.raises(ProfileError, match="no parameter with a gradient"):
        profile(nn.ReLU(), (3,), batch=1)
    with pytest.raises(ProfileError, match="must be at least 1"):
        profile(model(), (1, 8, 8), batch=0)


# ---- Chrome's format -----------------------------------------------------------------------------------------------


def span(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": ts,
        "dur": dur,
        "args": {k.replace("_", " "): v for k, v in args.items()},
    }


def iteration(at: float, first: int) -> list[dict[str, Any]]:
    """Two layers: forward 10 and 20 us, backward 30 (the second's) and 40 us."""
    dims = {"Input Dims": [[8, 4]], "Input type": ["float"]}
    return [
        span("aten::conv2d", at, 9, Sequence_number=first),
        span("aten::addmm", at + 10, 15, Sequence_number=first + 1),
        span(f"{FUNCTION}AddmmBackward0", at + 30, 29, Sequence_number=first + 1),
        span(ACCUMULATE, at + 59, 1) | {"args": dims},
        span(f"{FUNCTION}ConvolutionBackward0", at + 60, 38, Sequence_number=first),
        span(ACCUMULATE, at + 99, 1) | {"args": dims},
    ]


def put(tmp_path: Path, events: list[Any]) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_profile_is_the_trace_of_its_last_iteration(tmp_path: Path) -> None:
    path = put(tmp_path, [{"ph": "M", "name": "process_name"}, *iteration(0, 0), *iteration(1000, 2)])
    trace = import_profile(path)
    assert [(x.forward_ns, x.backward_ns) for x in trace.layers] == [(10_000, 40_000), (20_000, 30_000)]
    assert [(e.time_ns, e.parameter, e.bytes) for e in trace.aggregation("worker0")] == [
        (0, "layer1/0", 128),
        (40_000, "layer0/0", 128),
    ]
    packed = tmp_path / "profile.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert import_profile(packed) == trace


def test_marked_steps_are_believed(tmp_path: Path) -> None:
    marks = [span("ProfilerStep#1", -1, 500, "user_annotation"), span("ProfilerStep#2", 999, 5, "user_annotation")]
    assert len(import_profile(put(tmp_path, [*iteration(0, 0), *marks, *iteration(1000, 2)[:2]])).parameters) == 2


def test_on_a_gpu_gradients_are_ready_with_their_kernels(tmp_path: Path) -> None:
    device = [
        span("cudaLaunchKernel", 40, 2, "cuda_runtime", correlation=7),
        span("gemm", 200, 100, "kernel", correlation=7),
        span("cudaLaunchKernel", 70, 2, "cuda_runtime", correlation=8),
        span("gemm", 300, 50, "kernel", correlation=8),
    ]
    events = import_profile(put(tmp_path, iteration(0, 0) + device)).aggregation("worker0")
    assert [e.time_ns for e in events] == [0, 50_000]


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"dur": -1}, "dur", "must be 0 or more, not -1"),
        ({"ts": "soon"}, "ts", "must be a number of microseconds, not 'soon'"),
        ({"dur": None}, "dur", "must be a number of microseconds, not None"),
        ({"args": {}}, "Input Dims", "the profiler must record shapes"),
        ({"args": {"Input Dims": [[2]], "Input type": ["string"]}}, "Input type", "'string' is not one of float"),
    ],
)
def test_what_is_malformed_is_named(tmp_path: Path, change: dict[str, Any], field: str, says: str) -> None:
    events = iteration(0, 0)
    events[3] |= change
    path = put(tmp_path, events)
    with pytest.raises(KinetoError) as raised:
        import_profile(path)
    assert str(raised.value).startswith(f"{path}, traceEvents[3], {field}: ")
    assert says in str(raised.value)


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HostlibError, match="is not JSON"):
        import_profile(tmp_path / "text")
    with pytest.raises(HostlibError, match="No such file"):
        import_profile(tmp_path / "none")
    with pytest.raises(HostlibError, match="no gradient is accumulated"):
        import_profile(put(tmp_path, iteration(0, 0)[:2]))
    (tmp_path / "other").write_text("{}")
    with pytest.raises(HostlibError, match="has no traceEvents"):
        import_profile(tmp_path / "other")
