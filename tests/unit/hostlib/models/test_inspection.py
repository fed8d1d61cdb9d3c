"""Layers of any model, without weights: RALP's networks give RALP's skewness, and users' models are read, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hostlib.errors import ModelError, UnknownNameError
from hostlib.models.inspection import layers_of, load, output_shape
from hostlib.models.layer_info import LayerInfo
from hostlib.strategies.common.sync_cost import InformationBook
from tests.conftest import ROOT

# "RALP", table 1.
SKEWNESS = {
    "alexnet": -2.27,
    "googlenet": -0.74,
    "inception3": -0.96,
    "lenet": -1.16,
    "overfeat": -2.11,
    "resnet50": -1.26,
    "vgg11": -3.62,
    "vgg19": -3.02,
}


def skewness(layers: tuple[LayerInfo, ...]) -> float:
    """Of the layers' indices, weighted by their parameters."""
    weight = sum(x.params for x in layers)
    mean = sum(x.params * x.index for x in layers) / weight
    second, third = (sum(x.params * (x.index - mean) ** n for x in layers) / weight for n in (2, 3))
    return float(third / second**1.5)


@pytest.mark.parametrize(("name", "published"), SKEWNESS.items())
def test_layers_are_those_that_ralp_counts(name: str, published: float) -> None:
    assert round(skewness(load(name).layers), 2) == published


def test_a_layer_is_described() -> None:
    first, pool, *_, last = load("vgg19").layers
    assert first == LayerInfo(
        1, "features.0.0", "conv", 64 * 28, 64 * 224**2, 2 * 64 * 27 * 224**2, None,
        ("features.0.0.weight", "features.0.0.bias"),
    )  # fmt: skip
    assert (pool.kind, last.kind) == ("conv", "fc")
    assert last.matrix == (1001, 4096)
    assert last.members == ("classifier.4.weight", "classifier.4.bias")
    assert next(x for x in load("vgg19").layers if x.matrix).matrix == (4096, 25088)


def test_members_are_all_that_is_trained_and_each_is_one_layers() -> None:
    for text in ("resnet50", "gpt2:layers=2", "inception3"):
        seen = load(text)
        members = [name for layer in seen.layers for name in layer.members]
        assert len(members) == len(set(members))
        assert sum(1 for _ in members) > len(seen.layers) / 2
    assert "head.weight" not in members


def test_a_tied_head_has_no_parameters_of_its_own() -> None:
    layers = load("gpt2:classes=100:context=16:layers=1:width=32:heads=4").layers
    assert [(x.kind, x.params) for x in layers] == [
        ("embedding", 3200),
        ("embedding", 512),
        ("norm", 64),
        ("fc", 33 * 96),
        ("attention", 0),
        ("fc", 33 * 32),
        ("norm", 64),
        ("fc", 33 * 128),
        ("fc", 129 * 32),
        ("norm", 64),
        ("fc", 0),
    ]
    attention, head = layers[4], layers[-1]
    assert attention.name == "blocks.0.attention.scaled_dot_product_attention"
    assert (attention.output, attention.flops) == (16 * 32, 2 * 2 * 16 * 16 * 32)
    assert (head.matrix, head.members, head.output, head.flops) == (None, (), 1600, 2 * 1600 * 32)


class Functional(nn.Module):
    """Pools as functions, a branch that depends on a flag, and layers that are made in another order than called."""

    input_shape = (3, 16, 16)

    def __init__(self, deep: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.never = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.ones(8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.deep = deep

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 2)
        if self.deep and x.shape[-1] > 4:
            x = functional.avg_pool2d(x, kernel_size=(2, 4))
        x = functional.adaptive_avg_pool2d(x, 2).mean((2, 3))
        return {"scores": self.head(self.frozen(x * self.scale))}


def test_functional_pools_and_control_flow() -> None:
    model = Functional()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = layers_of(model, torch.rand(4, 3, 16, 16))
    assert [(x.index, x.name, x.kind, x.params, x.output) for x in layers] == [
        (1, "model", "other", 8, 10),
        (2, "head", "fc", 90, 10),
        (3, "first", "conv", 8 * 27 + 16, 8 * 256),
        (4, "max_pool2d", "pool", 0, 8 * 64),
        (5, "avg_pool2d", "pool", 0, 8 * 8),
        (6, "adaptive_avg_pool2d", "pool", 0, 8 * 4),
        (7, "mean", "pool", 0, 8),
        (8, "frozen", "fc", 0, 8),
    ]
    assert layers[2].members == ("first.weight", "norm.weight", "norm.bias")
    assert [x.flops for x in layers[3:7]] == [4 * 8 * 64, 8 * 8 * 8, 8 * 8, 8 * 4]
    # Neither its weights nor its running statistics were touched, and no hook is left.
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert len(layers_of(Functional(deep=False), torch.rand(4, 3, 16, 16))) == 7
    assert output_shape(model, (3, 16, 16)) == (10,)


def test_pools_and_norms_of_other_kinds() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(3),
        nn.ConvTranspose2d(3, 6, 4, stride=2, padding=1),
        nn.LPPool2d(2, 2),
        nn.AdaptiveMaxPool2d((4, 4), return_indices=False),
        nn.GroupNorm(2, 6),
        nn.Flatten(),
        nn.Linear(96, 4),
        nn.BatchNorm1d(4),
        nn.LayerNorm(4),
    )
    layers = layers_of(model, torch.empty(3, 3, 8, 8))
    assert [(x.kind, x.params) for x in layers] == [
        ("norm", 6),
        ("conv", 3 * 6 * 16 + 6 + 12),
        ("pool", 0),
        ("pool", 0),
        ("fc", 96 * 4 + 4 + 8),
        ("norm", 8),
    ]
    assert layers[1].flops == 2 * 3 * 6 * 16 * 8 * 8  # each input meets each weight
    assert layers[4].matrix == (4, 96)


def test_attention_is_one_layer() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    (layer,) = layers_of(Attends(), torch.empty(2, 5, 16))
    assert (layer.kind, layer.params, layer.output) == ("attention", 4 * 17 * 16, 80)
    assert layer.flops == 4 * 2 * 5 * 16 * 16 + 2 * 2 * 5 * 5 * 16


def test_what_is_called_twice_counts_once_and_works_twice() -> None:
    inner = nn.Linear(4, 4)
    (layer,) = layers_of(nn.Sequential(inner, nn.ReLU(), inner), torch.empty(1, 4))
    assert (layer.params, layer.flops) == (20, 64)
    assert not inner.weight.is_meta
    # Each call has a pair of factors of its own, as in training.
    assert InformationBook((layer,), 8, 8, 32).factors(layer) == 2 * 32


def test_weights_that_two_layers_share_are_no_factors_products() -> None:
    first, second, third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    layers = layers_of(nn.Sequential(first, second, third), torch.empty(1, 4))
    assert [layer.matrix for layer in layers] == [None, None, (4, 4)]
    assert [layer.params for layer in layers] == [20, 4, 20]


FACTORIES = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2) if False else nn.Linear(4 * 222 * 222, 2))

def wide():
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 7))
    model.input_shape = (4, 5, 5)
    return model

def drawn():
    rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]  # needs numbers
    model = nn.Linear(3, len(rates))
    model.input_shape = (3,)
    return model

def fails():
    raise KeyError("weights.pt is not here")

def nothing():
    return 5

constant = 5

class Decides(nn.Module):
    input_shape = (3,)
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Silent(nn.Module):
    input_shape = (3,)
    def forward(self, x):
        return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_to_inspect.py").write_text(FACTORIES)
    (tmp_path / "broken_to_inspect.py").write_text("import torch\nthis is no Python\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    return tmp_path


def test_a_users_model_is_found_where_one_is(folder: Path) -> None:
    seen = load("mine_to_inspect:net")
    assert (seen.name, seen.input, seen.classes) == ("mine_to_inspect:net", (3, 224, 224), 2)
    assert [x.kind for x in seen.layers] == ["conv", "fc"]
    assert load("mine_to_inspect:wide").input == (4, 5, 5)
    assert load("mine_to_inspect:wide", (1, 10, 10)).classes == 7
    assert load("mine_to_inspect:drawn").classes == 3


def test_the_pages_example_works(folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/models.md").read_text(), re.S)
    (folder / "my_models.py").write_text(code)
    seen = load("my_models:network")
    assert ([x.kind for x in seen.layers], seen.input, seen.classes) == (["conv", "pool", "fc"], (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mine_to_inspect:fails", "does not build a model: KeyError: 'weights.pt is not here'"),
        ("mine_to_inspect:nothing", "returns a int, not a torch.nn.Module"),
        ("mine_to_inspect:constant", "does not build a model: it is a int, not a function"),
        (
            "mine_to_inspect:missing",
            "does not build a model: AttributeError: module 'mine_to_inspect' has no attribute 'missing'",
        ),
        ("nowhere.at.all:x", "does not build a model: ModuleNotFoundError: No module named 'nowhere'"),
        ("broken_to_inspect:net", "does not build a model: SyntaxError"),
        (
            "mine_to_inspect:Decides",
            "the model's forward pass depends on values in its tensors, which inspection does not have: ",
        ),
        ("mine_to_inspect:Silent", "the model returns a NoneType, not a tensor"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(folder: Path, text: str, says: str) -> None:
    with pytest.raises(ModelError) as raised:
        load(text)
    assert says in str(raised.value) and "\n" not in str(raised.value)
    assert "Decides" not in text or "--input" not in str(raised.value)


def test_an_input_that_does_not_fit_is_named_with_what_to_do(folder: Path) -> None:
    with pytest.raises(
        ModelError,
        match=r"does not take an input of 3x8x8 \(float32\): .*; give its input shape with --input or the model's attribute",
    ):
        load("mine_to_inspect:net", (3, 8, 8))


def test_an_unknown_model_is_answered_with_the_legal_ones() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown model 'vgg12'; legal are MODULE:FACTORY, alexnet, cifar10_quick"
    ):
        load("vgg12")
