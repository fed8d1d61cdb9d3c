"""What of fully connected layers travels, and what is made of it again; and the buckets of everything else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hostlib.strategies.builtin.onebit.quantiser import OneBit, quantised, restored
from hostlib.strategies.common.buckets import Buckets, filled
from hostlib.strategies.common.linear_factors import Connected, Factors, Shape, connected_layers


def after_backward(layer: nn.Linear, *inputs: Tensor) -> Connected:
    """The layer's capture, when each input has passed through it and all came back."""
    captured = Connected(layer)
    sum(layer(each).square().sum() for each in inputs).backward()  # type: ignore[union-attr]
    return captured


@pytest.mark.parametrize("shapes", [[(8, 5)], [(2, 3, 5)], [(4, 5), (6, 5)]])  # Examples; tokens; passes.
@pytest.mark.parametrize("bias", [True, False])
def test_factors_give_the_gradient(shapes: list[tuple[int, ...]], bias: bool) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(5, 7, bias=bias)
    captured = after_backward(layer, *(torch.randn(shape) for shape in shapes))
    part = Factors().encode(captured)
    assert part.shape == Factors().empty(captured.shape, captured.vectors).shape
    made = Factors().average(captured.shape, [part, part])
    gradients = torch.cat([p.grad.view(-1) for p in layer.parameters() if p.grad is not None])
    torch.testing.assert_close(made, gradients)


def test_factors_of_ranks_are_averaged() -> None:
    torch.manual_seed(2)
    layer, inputs = nn.Linear(3, 2), torch.randn(2, 4, 3)
    parts = []
    for each in inputs:
        layer.zero_grad()
        parts.append(Factors().encode(after_backward(layer, each)))
    layer.zero_grad()
    whole = after_backward(layer, inputs.view(8, 3))
    assert layer.weight.grad is not None and layer.bias.grad is not None
    expected = torch.cat([layer.weight.grad.view(-1), layer.bias.grad]) / 2
    torch.testing.assert_close(Factors().average(whole.shape, parts), expected)


def test_layers_that_share_weights_or_hide_them_are_left_alone() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 4)
            self.attention = nn.MultiheadAttention(4, 2)
            self.first = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)
            self.last = nn.Linear(4, 9, bias=False)
            self.last.weight = self.embedding.weight

    model = Model()
    assert [layer.module for layer in connected_layers(model)] == [model.first]


matrices = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32)).map(
    lambda numbers: torch.randn(numbers[:2], generator=torch.Generator().manual_seed(numbers[2]))
)


@given(matrices)
def test_one_bit_says_signs_and_columns_means(values: Tensor) -> None:
    outputs, inputs = values.shape
    part = quantised(values)
    assert part.shape == OneBit().empty(Shape(outputs, inputs, False), 1).shape
    again = restored(part, outputs, inputs)
    assert torch.equal(again < 0, values < 0)
    # What is left has no mean: neither of those below 0 nor of the others.
    torch.testing.assert_close((values - again).sum(0), torch.zeros(inputs), atol=1e-5, rtol=0)
    for column, known in zip(values.T, again.T, strict=True):
        for chosen in (column < 0, column >= 0):
            assert len(set(known[chosen].tolist())) <= 1


def test_what_one_bit_cannot_say_is_said_later() -> None:
    """The sum over many steps of the same gradient is that gradient, many times."""
    layer, form = nn.Linear(6, 4, bias=False), OneBit()
    captured, shape = Connected(layer), Shape(4, 6, False)
    layer.weight.grad = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    steps = 200
    total = sum(form.average(shape, [form.encode(captured)]) for _ in range(steps))
    assert isinstance(total, Tensor)
    torch.testing.assert_close(total.view(4, 6) / steps, layer.weight.grad, atol=0.05, rtol=0)


def test_buckets_hold_neighbours() -> None:
    parameters = [nn.Parameter(torch.empty(count)) for count in (2, 3, 50, 1, 4, 6)]
    assert [[len(p) for p in bucket] for bucket in filled(parameters, 40)] == [[2, 3], [50], [1, 4], [6]]


class Recorder:
    """A carrier that takes nothing anywhere."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []

    def start(self, buckets: list[list[nn.Parameter]]) -> None:
        pass

    def begin(self, number: int, gradients: Tensor) -> None:
        self.begun.append((number, gradients.numel()))

    def finish(self, number: int, parameters: list[nn.Parameter]) -> None:
        pass

    def close(self, graceful: bool) -> None:
        pass


def test_buckets_begin_in_their_order_and_lack_none() -> None:
    """The second layer's gradients are there last, and the third's never."""
    layers = nn.ModuleList(nn.Linear(1, width, bias=False) for width in (2, 3, 4))
    first, second, _ = layers
    recorder = Recorder()
    buckets = Buckets(list(layers.parameters()), 1e-9, recorder)
    for _ in range(2):
        recorder.begun.clear()
        (first(second(torch.ones(1, 1)).sum().view(1, 1))).sum().backward()
        assert recorder.begun == []
        buckets.finish()
        assert recorder.begun == [(0, 4), (1, 3), (2, 2)]
