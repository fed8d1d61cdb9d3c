"""A model in pieces computes what it did in one, wherever it is cut; what cannot be cut is refused in one line."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from hostlib.errors import HostlibError
from hostlib.models.inspection import example, input_of
from hostlib.models.loading import load_model
from hostlib.pipelines.layer_profile import describe_stages, measured_layers
from hostlib.pipelines.model_chain import ModelChain
from hostlib.pipelines.stage_module import StageModule

BATCH = 3
GPT = "gpt2:layers=2:width=16:heads=2:context=8:classes=20"


class Residual(nn.Module):
    """Changes what it is given in place, and adds it to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(6, 6), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x)
        return x + self.inner(x)


class Deciding(nn.Module):
    """Decides by values: it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta:
            return self.one(x)  # type: ignore[no-any-return]
        return self.one(x) if x.sum() > 0 else self.other(x)  # type: ignore[no-any-return]


class Users(nn.Module):
    """Parameters of its own, sizes of its input, changes in place, weights used twice, and a part that decides."""

    input_shape = (5, 4)

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 6)
        self.places = nn.Parameter(torch.rand(5, 6))
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.deciding = Deciding()
        self.mean = nn.Linear(6, 4, bias=False)
        self.mean.weight = nn.Parameter(self.into.weight.detach().t().clone())
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.into(x) * width**-0.5 + self.places
        for block in self.blocks:
            h = block(h)
        h = self.mean(self.deciding(h)) + x
        return self.out(h.reshape(batch, length * width).view(batch, length, width).sum(1))  # type: ignore[no-any-return]


def chain_of(model: nn.Module) -> ModelChain:
    like = example(model, input_of(model))
    return ModelChain(model, torch.empty(BATCH, *like.shape[1:], dtype=like.dtype, device="meta"))


def batch_of(model: nn.Module) -> Tensor:
    like = example(model, input_of(model))
    shape = (BATCH, *like.shape[1:])
    return torch.randint(20, shape) if like.dtype == torch.int64 else torch.rand(shape)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def through(chain: ModelChain, cuts: tuple[int, ...], inputs: Tensor, recompute: bool) -> Tensor:
    """Both passes in pieces, with as little in common as in several processes; returns the sum of the outputs."""
    handed: tuple[Tensor, ...] = (inputs,)
    passed = []
    for first, end in itertools.pairwise((0, *cuts, len(chain))):
        piece = chain.piece(first, end)
        leaves = tuple(
            each.detach().requires_grad_(like.requires_grad) for each, like in zip(handed, piece.inputs, strict=True)
        )
        made = StageModule(piece, recompute)(*leaves)
        outputs = made if isinstance(made, tuple) else (made,)
        for value, like in zip(outputs, piece.outputs, strict=True):
            assert (value.shape, value.dtype, value.requires_grad) == (like.shape, like.dtype, like.requires_grad)
        passed.append((leaves, outputs))
        handed = outputs
    total = handed[0].sum()
    backwards: tuple[Tensor | None, ...] = (torch.ones_like(handed[0]),)
    for leaves, outputs in reversed(passed):
        trained = [(value, gradient) for value, gradient in zip(outputs, backwards, strict=True) if value.requires_grad]
        torch.autograd.backward([value for value, _ in trained], [gradient for _, gradient in trained])
        backwards = tuple(leaf.grad for leaf in leaves)
    return total.detach()


@pytest.mark.parametrize("name", ["lenet", "users", GPT, "cifar10_quick"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_pieces_are_the_whole(name: str, recompute: bool) -> None:
    torch.manual_seed(1)
    model = Users() if name == "users" else load_model(name, (1, 8, 8) if name == "lenet" else None)
    chain, inputs = chain_of(model), batch_of(model)
    total = model(inputs).sum()
    total.backward()
    expected = gradients(model)
    count = len(chain)
    assert count > 3
    for cuts in ((), (1,), (count - 1,), (1, count // 2), tuple(range(1, count))):
        assert torch.equal(through(chain, cuts, inputs, recompute), total.detach())
        found = gradients(model)
        assert found.keys() == expected.keys()
        for name_of, gradient in expected.items():
            torch.testing.assert_close(found[name_of], gradient)


def test_a_part_that_decides_stays_whole_and_what_is_shared_is_not_cut_off() -> None:
    chain = chain_of(Users())
    names = [layer.name for layer in chain.layers]
    assert "deciding" in names and not any(name.startswith("deciding.") for name in names)
    assert all(len(layer.handed) == 2 for layer in chain.layers[:-2])  # the input is added at the end
    assert chain.layers[-1].handed == ()
    assert chain.activation_bytes(0) == 4 * BATCH * 5 * (6 + 4)


def test_a_chain_of_few_layers_is_cut_in_front_of_others() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    model.input_shape = (4,)
    like = torch.empty(BATCH, 4, device="meta")
    assert [layer.name for layer in ModelChain(model, like, 2).layers] == ["0", "2"]
    chain = ModelChain(model, like, 3)
    assert [layer.name for layer in chain.layers] == ["0", "1", "2", "3"]
    inputs = batch_of(model)
    assert torch.equal(through(chain, (1, 2, 3), inputs, False), model(inputs).sum())
    with pytest.raises(HostlibError, match="Sequential can be cut into 4 parts at most, not 5"):
        ModelChain(model, like, 5)


def test_every_parameter_is_in_a_layer() -> None:
    model = load_model(GPT)
    chain = chain_of(model)
    found = {id(p) for layer in chain.layers for p in layer.parameters}
    assert found == {id(p) for p in model.parameters()}
    tied = [layer.name for layer in chain.layers if any(p is model.tokens.weight for p in layer.parameters)]
    assert tied == ["tokens", "head"]


def test_recomputing_changes_statistics_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.input_shape = (4,)
    inputs = batch_of(model)
    found = []
    for recompute in (False, True):
        model[1].reset_running_stats()
        through(chain_of(model), (1,), inputs, recompute)
        found.append({name: value.clone() for name, value in model[1].named_buffers()})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert found[1]["num_batches_tracked"] == 1


def test_layers_are_measured_and_the_model_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(inplace=True), nn.Linear(256, 4))
    model.input_shape = (64,)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    chain = chain_of(model)
    costs = measured_layers(chain, batch_of(model), repeats=1)
    assert [layer.name for layer in chain.layers] == ["0", "1", "3"]
    assert [each.parameter_bytes for each in costs] == [4 * 65 * 256, 4 * 2 * 256, 4 * 257 * 4]
    assert [each.activation_bytes for each in costs] == [4 * BATCH * 256, 4 * BATCH * 256, 0]
    assert all(each.forward_ns > 0 and each.backward_ns > 0 for each in costs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert describe_stages(chain, (1,)) == ["0", "1 to 3"]


class Untraceable(Deciding):
    """Nothing but a decision."""

    input_shape = (6,)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) if x.sum() > 0 else self.other(x)  # type: ignore[no-any-return]


class Frozen(nn.Module):
    """Nothing to train."""

    input_shape = (6,)

    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class Failing(nn.Module):
    """Fails where it is run, not where it is traced."""

    input_shape, input_dtype = (6,), torch.float32

    def __init__(self) -> None:
        super().__init__()
        self.one, self.table = nn.Linear(6, 6), nn.Embedding(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((self.one(x) * 0 + 9).long())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Untraceable(), "Untraceable cannot be cut: torch.fx cannot trace it .*make it a torch.nn.Sequential"),
        (Frozen(), "Frozen has no trained parameters"),
    ],
)
def test_what_cannot_be_cut_is_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(HostlibError, match=why) as refused:
        chain_of(model)
    assert "\n" not in str(refused.value)


def test_a_forward_pass_that_fails_names_the_layer() -> None:
    model = Failing()
    with pytest.raises(HostlibError, match="the model's forward pass fails at one: index out of range") as refused:
        measured_layers(chain_of(model), batch_of(model), repeats=1)
    assert "\n" not in str(refused.value)
