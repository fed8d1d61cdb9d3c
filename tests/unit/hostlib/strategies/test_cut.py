"""A model in two halves computes what it did in one, whatever its form; what cannot be cut is refused in one line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.models.layer_info import LayerInfo
from hostlib.models.small import build_model
from hostlib.strategies.builtin.ralp.model_split import Halves, cut, require_tensors

BATCH = 3


def layer(name: str, *members: str) -> LayerInfo:
    return LayerInfo(1, name, "conv", 1, 1, 1, None, members)


def halves(model: nn.Module, name: str, shape: tuple[int, ...], *members: str) -> Halves:
    return cut(model, layer(name, *members), (), torch.empty(BATCH, *shape, device="meta"))


@pytest.mark.parametrize(
    ("model", "name", "handed"),
    [
        ("lenet", "features.5", [(32, 2, 2)]),
        ("vgg", "classifier.1", [(512,)]),
        ("resnet18", "mean", [(512,)]),  # a function; and the forward pass asks for its input's width
        ("resnet18", "blocks.7", [(512, 4, 4)]),
        ("resnet18", "blocks.2.around.0", [(128, 16, 16), (128, 16, 16)]),  # one of two ways
    ],
)
def test_the_halves_are_the_whole(model: str, name: str, handed: list[tuple[int, ...]]) -> None:
    torch.manual_seed(1)
    whole = build_model(model)
    made = halves(whole, name, (1, 8, 8))
    images = torch.rand(BATCH, 1, 8, 8)
    between = made.head(images)
    assert [tuple(each.shape[1:]) for each in between] == handed
    assert torch.equal(made.tail(*between), whole(images))


def test_parameters_are_the_models_own_and_each_is_in_one_half() -> None:
    whole = build_model("resnet18")
    made = halves(whole, "blocks.5", (1, 8, 8))
    head, tail = dict(made.head.named_parameters()), dict(made.tail.named_parameters())
    assert head.keys().isdisjoint(tail)
    for name, parameter in whole.named_parameters():
        assert (head.get(name) is parameter) != (tail.get(name) is parameter)
        assert (name in tail) == (name.startswith(("blocks.6", "blocks.7", "classifier")))


def test_a_normalisation_stays_with_its_convolution() -> None:
    made = halves(
        build_model("resnet18"), "blocks.7.body.3", (1, 8, 8), "blocks.7.body.3.weight", "blocks.7.body.4.bias"
    )
    assert "blocks.7.body.4.weight" in dict(made.head.named_parameters())


class Tied(nn.Module):
    """Its last layer's weights are its first's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


class Looking(nn.Module):
    """Decides by what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x if x.sum() > 0 else self.second(x)


class Shrinking(nn.Module):
    """Pools until its map is small enough, which depends on what its convolution makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool, self.last = (
            nn.Conv2d(1, 2, 3),
            nn.BatchNorm2d(2),
            nn.MaxPool2d(2),
            nn.Linear(2, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        while x.shape[-1] > 1:
            x = self.pool(x)
        return self.last(x.flatten(1))  # type: ignore[no-any-return]


def test_a_forward_pass_may_look_at_shapes() -> None:
    whole = Shrinking()
    made = halves(whole, "pool", (1, 10, 10))
    assert whole.norm.num_batches_tracked == 0  # nothing was computed
    whole.eval()
    images = torch.rand(BATCH, 1, 10, 10)
    (between,) = made.head(images)
    assert between.shape == (BATCH, 2, 1, 1)
    assert torch.equal(made.tail(between), whole(images))


class Counting(nn.Module):
    """Its tail needs a number from its head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        count = x.size(0)
        return self.second(self.first(x)) / count  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "name", "why"),
    [
        (Tied(), "first", "cut behind first: first.weight, before it, is second.weight, after it"),
        (Looking(), "first", "Looking cannot be cut: torch.fx cannot trace it"),
        (Looking(), "second", "Looking cannot be cut: torch.fx cannot trace it"),
        (nn.Sequential(nn.Linear(4, 4)), "nothing", "cut behind nothing: its forward pass does not call it"),
    ],
)
def test_what_cannot_be_cut_is_refused(model: nn.Module, name: str, why: str) -> None:
    with pytest.raises(HostlibError, match=why) as refused:
        halves(model, name, (4,))
    assert "\n" not in str(refused.value)


def test_a_number_between_the_halves_is_refused() -> None:
    made = halves(Counting(), "first", (4,))
    with pytest.raises(HostlibError, match="its head passes int, not a tensor, to its tail"):
        require_tensors(made.head(torch.rand(BATCH, 4)))
