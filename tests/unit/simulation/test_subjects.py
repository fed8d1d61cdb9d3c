"""Subjects: models by name, of users and as traces, and how long they compute, with where that comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hostlib.errors import HostlibError
from hostlib.traces.trace import read, write
from simulation.errors import SimulationError
from simulation.models import published_times, workload_source
from simulation.models.compute import DEFAULT_BATCH, DEFAULT_TFLOPS, Compute
from simulation.models.gpus import EFFICIENCY, GPUS, find_gpu
from simulation.models.workload_source import WorkloadSource, bare, is_trace, model, recorded

MINE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.head = nn.Linear(32, 10)
        self.embed = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.mask = mask

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.mask else None
        return self.head(self.body(self.embed(x), mask=mask))

class Recurrent(nn.Module):
    input_shape = (5, 8)

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])

class ByHand(nn.Module):
    input_shape = (6, 8)

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, dtype=torch.bfloat16) for _ in range(3))
        self.input_dtype = torch.bfloat16

    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)

class Nothing(nn.Module):
    input_shape = (3,)

    def forward(self, x):
        return x

def plain(): return Net(False)
def masked(): return Net(True)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in the working directory."""
    (tmp_path / "subjects_of_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def compute_s(subject: WorkloadSource) -> float:
    return subject.trace.compute_s


def test_a_users_model_without_torch_is_told_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        HostlibError, match=r"^some\.module:net is inspected by PyTorch, .*pip install 'netfold\[train\]'"
    ):
        model("some.module:net", Compute())


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("factory", ["plain", "masked"])
def test_a_transformer_of_the_users_own(factory: str) -> None:
    subject = model(f"subjects_of_mine:{factory}", Compute(batch=4, tflops=1.0), shape=(16,))
    layer = 3 * 32 * 33 + 32 * 33 + 64 * 33 + 32 * 65 + 2 * 64
    assert subject.trace.bytes == 4 * (100 * 32 + 2 * layer + 10 * 33)
    # In the order of the calls, though the head is made first: its gradient is the first, the embedding's the last.
    order = [event.parameter for event in subject.trace.aggregation("worker0")]
    assert order[0].startswith("head.") and order[-1] == "embed.weight"
    products = 16 * (2 * 4 * 32 * 32 + 2 * 2 * 32 * 64) + 4 * 16 * 16 * 32
    norms = 2 * 2 * 16 * 32
    flops = 2 * (products + norms) + 2 * 16 * 32 * 10
    assert subject.trace.flops == flops
    assert compute_s(subject) == pytest.approx(3 * 4 * flops / 1e12, abs=2e-9)
    assert subject.assumptions["model"].value == f"subjects_of_mine:{factory}"
    assert subject.trace.family == "transformer"


@pytest.mark.usefixtures("mine")
def test_products_in_no_layer_count_too() -> None:
    recurrent = model("subjects_of_mine:Recurrent", Compute())
    assert recurrent.trace.flops == 5 * 2 * (8 + 16) * 64 + 2 * 16 * 3
    times = {layer.name: layer.forward_ns for layer in recurrent.trace.layers}
    assert times["lstm"] > 100 * times["out"]
    by_hand = model("subjects_of_mine:ByHand", Compute())
    assert by_hand.trace.flops == 3 * 2 * 6 * 8 * 8 + 2 * 2 * 6 * 6 * 8
    assert by_hand.trace.bytes == 2 * 3 * 8 * 9  # bfloat16


@pytest.mark.usefixtures("mine")
def test_what_has_nothing_to_train_is_refused() -> None:
    with pytest.raises(SimulationError, match="subjects_of_mine:Nothing has no parameter with a gradient"):
        model("subjects_of_mine:Nothing", Compute())


def test_published_times_are_the_default_and_said() -> None:
    for name, (forward, backward) in published_times.COMPUTE_S.items():
        subject = model(name, Compute())
        assert compute_s(subject) == pytest.approx(forward + backward, abs=1e-6)
        assert subject.assumptions["input"].value == "3x299x299"
        assert "table 3" in subject.assumptions["forward_s"].source
        assert "tflops" not in subject.assumptions
        # Layers as strategies see them are those of the trace.
        rated = model(name, Compute(tflops=10.0))
        assert sum(layer.params for layer in rated.layers) * 4 == rated.trace.bytes
    twice = model("vgg16", Compute(batch=2 * DEFAULT_BATCH))
    assert compute_s(twice) == pytest.approx(2 * sum(published_times.COMPUTE_S["vgg16"]), abs=1e-6)
    assert twice.assumptions["batch"].source == "given"
    assert "scaled by FLOPs" in twice.assumptions["forward_s"].source


def test_a_gpu_is_its_published_peak_times_what_training_achieves() -> None:
    for name, gpu in GPUS.items():
        for network, family in (("resnet50", "cnn"), ("gpt2", "transformer")):
            subject = model(network, Compute(gpu=name))
            rate = subject.assumptions["tflops"]
            assert rate.value == gpu.tflops * EFFICIENCY[family][0]  # type: ignore[index]
            assert gpu.source in rate.source and EFFICIENCY[family][1] in rate.source  # type: ignore[index]
            seconds = 3 * DEFAULT_BATCH * (subject.trace.flops or 0) / (float(rate.value) * 1e12)
            assert compute_s(subject) == pytest.approx(seconds, rel=1e-4)
    assert find_gpu("H100") is GPUS["h100"]
    assumed = model("resnet50", Compute()).assumptions["tflops"]
    assert assumed.value == DEFAULT_TFLOPS and assumed.source.startswith("default")


def test_a_trace_scales_to_another_batch_and_rate_if_it_says_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lenet.trace"
    original = model("lenet", Compute(batch=8, tflops=0.001)).trace
    write(original, path)
    assert read(path) == original
    asis = recorded(path)
    assert asis.trace == original and asis.batch == 8
    assert asis.assumptions["batch"].value == 8
    doubled = model(str(path), Compute(batch=16))
    assert compute_s(doubled) == pytest.approx(2 * compute_s(asis), rel=1e-6)
    assert doubled.batch == 16 and "scaled by batch" in doubled.assumptions["forward_s"].source
    faster = recorded(path, Compute(tflops=0.002))
    assert compute_s(faster) == pytest.approx(compute_s(asis) / 2, rel=1e-6)
    on_gpu = recorded(path, Compute(gpu="t4", batch=16)).assumptions["tflops"]
    assert on_gpu.value == 13.0 and "NVIDIA T4" in on_gpu.source
    # Operations of a trace that was changed are unknown.
    write(original.add_layers("conv2", 2), path)
    assert compute_s(recorded(path, Compute(batch=16))) > compute_s(doubled)
    for compute, option in ((Compute(tflops=1.0), "--tflops"), (Compute(gpu="t4"), "--gpu")):
        with pytest.raises(SimulationError, match=rf"^{option}: .*lenet.trace does not say its FLOPs and batch\."):
            recorded(path, compute)
    write(replace(original, batch=None), path)
    assert recorded(path).batch == DEFAULT_BATCH
    with pytest.raises(SimulationError, match=r"^--batch: .*lenet.trace does not say the batch of its times\."):
        recorded(path, Compute(batch=16))
    with pytest.raises(SimulationError, match=r"is a trace, which has its own times"):
        recorded(path, Compute(forward_s=1.0))
    with pytest.raises(SimulationError, match=r"^--input: .* is a trace, whose model has its input already"):
        model(str(path), Compute(), 224)


def test_a_name_is_a_network_before_it_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lenet", "mine", "a:b"):
        (tmp_path / name).write_text("")
    assert [is_trace(text) for text in ("lenet", "vgg16:classes=3", "mine", "a:b", "x.trace", "./x")] == [
        False, False, True, False, True, True,
    ]  # fmt: skip
    assert bare().trace.bytes == workload_source.DEFAULT_SIZE
