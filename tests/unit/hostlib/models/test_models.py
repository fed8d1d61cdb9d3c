"""Models and data: shapes, sizes, and the same numbers from the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hostlib.datasets.batches import batches, digits
from hostlib.errors import RunError, UnknownNameError
from hostlib.models.small import CLASSES, MODELS, build_model

DIGITS = 1797


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("lenet", 20_000, 80_000), ("vgg", 500_000, 1_000_000), ("resnet18", 11_100_000, 11_200_000)],
)
def test_sizes_and_shapes(name: str, least: int, most: int) -> None:
    model = build_model(name)
    assert least <= sum(p.numel() for p in model.parameters()) <= most
    scores = model(torch.zeros(3, 1, 8, 8))
    assert scores.shape == (3, CLASSES)
    assert scores.dtype == torch.float32


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build_model(name)
    model(torch.rand(4, 1, 8, 8)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_resnet18_takes_32_pixels_as_they_are_and_every_weight_of_it_learns() -> None:
    torch.manual_seed(1)
    model = build_model("resnet18").eval()
    small = torch.rand(2, 1, 8, 8)
    assert torch.equal(model(small), model(small.repeat_interleave(4, 2).repeat_interleave(4, 3)))
    assert list(model.buffers()) == []  # nothing that ranks would have to agree on but the weights
    model(small).square().sum().backward()
    # On a map of one pixel, only the middle of a 3x3 kernel would have a gradient.
    last = [m.weight.grad for m in model.modules() if isinstance(m, torch.nn.Conv2d)][-1]
    assert last is not None and last.shape == (512, 512, 3, 3)
    assert torch.all(last.abs().amax((0, 1)) > 0)


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.detach().view(-1) for p in build_model(name).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_an_unknown_model_is_answered_with_the_legal_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'alexnet'; legal are lenet, resnet18, vgg"):
        build_model("alexnet")


def test_digits_are_split_four_to_one_and_stratified() -> None:
    split = digits(seed=1)
    assert (len(split.train_labels), len(split.test_labels)) == (1437, 360)
    assert split.train_images.shape == (1437, 1, 8, 8)
    assert (split.train_images.dtype, split.train_labels.dtype) == (torch.float32, torch.int64)
    assert (float(split.train_images.min()), float(split.train_images.max())) == (-1.0, 1.0)
    shares = torch.bincount(split.train_labels) / torch.bincount(torch.cat([split.train_labels, split.test_labels]))
    assert torch.all((shares - 0.8).abs() < 0.01)


def test_digits_are_scikit_learns() -> None:
    def in_order(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        rows = np.column_stack([images, labels])
        return rows[np.lexsort(rows.T)]

    split = digits(seed=1)
    images = torch.cat([split.train_images, split.test_images]).flatten(1).numpy()
    labels = torch.cat([split.train_labels, split.test_labels]).numpy()
    assert np.array_equal(in_order((images + 1) * 8, labels), in_order(*load_digits(return_X_y=True)))


def test_without_scikit_learn_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostlib.datasets.batches.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"^the digits come with scikit-learn, which is not installed \(pip install"):
        digits(1)


def test_the_seed_decides_the_split() -> None:
    assert torch.equal(digits(1).test_images, digits(1).test_images)
    assert not torch.equal(digits(1).test_images, digits(2).test_images)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_ranks_share_an_epoch_without_overlap(world_size: int) -> None:
    per_rank = [list(batches(DIGITS, 16, rank, world_size, seed=1, epoch=0)) for rank in range(world_size)]
    assert {len(b) for b in per_rank} == {DIGITS // (16 * world_size)}
    seen = torch.cat([batch for rank in per_rank for batch in rank])
    assert len(seen.unique()) == len(seen) == DIGITS // (16 * world_size) * 16 * world_size


def test_the_ranks_batches_are_the_single_workers_batch() -> None:
    alone = next(batches(DIGITS, 64, 0, 1, seed=1, epoch=3))
    together = torch.cat([next(batches(DIGITS, 16, rank, 4, seed=1, epoch=3)) for rank in range(4)])
    assert torch.equal(alone, together)


def test_every_epoch_has_its_own_order() -> None:
    first, second = (next(batches(DIGITS, 16, 0, 4, seed=1, epoch=epoch)) for epoch in (0, 1))
    assert not torch.equal(first, second)


def test_the_names_are_known_without_torch() -> None:
    from hostlib.models.zoo.catalogue import SMALL

    assert tuple(MODELS) == SMALL
