"""Learnable synthetic data of any shape, generated from a seed."""

from __future__ import annotations

import torch
from torch import Tensor

from hostlib.datasets.batches import Split
from hostlib.datasets.dataset import TEST_EVERY

COARSE = 4  # width and height of a class's pattern
NOISE = 0.5
SURPRISE = 0.1  # share of tokens that follow no rule


def synthetic_images(shape: tuple[int, ...], classes: int, examples: int, seed: int) -> Split:
    """Generate images: each class has a coarse pattern, and its examples add noise. float32 (N, *shape).

    Labels are assigned in turn, so all classes occur if there are at least as many examples.
    """
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(examples) % classes
    shown = min(classes, examples)
    images = NOISE * torch.randn(examples, *shape, generator=source)
    images += _pictures(shape, shown, source)[labels]
    return _split(images, labels, source)


def _pictures(shape: tuple[int, ...], count: int, source: torch.Generator) -> Tensor:
    if len(shape) != 3:
        return torch.rand(count, *shape, generator=source) * 2 - 1
    coarse = torch.rand(count, shape[0], COARSE, COARSE, generator=source) * 2 - 1
    return torch.nn.functional.interpolate(coarse, size=shape[1:])


def synthetic_tokens(length: int, vocabulary: int, examples: int, seed: int) -> Split:
    """Generate tokens: each has a fixed successor, except for some noise. int64 (N, length), and the same shifted by
    one.
    """
    source = torch.Generator().manual_seed(seed)
    following = torch.randperm(vocabulary, generator=source)
    tokens = torch.randint(vocabulary, (examples, length + 1), generator=source)
    surprising = torch.rand(examples, length + 1, generator=source) < SURPRISE
    for place in range(1, length + 1):
        expected = following[tokens[:, place - 1]]
        tokens[:, place] = torch.where(surprising[:, place], tokens[:, place], expected)
    return _split(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), source)


def _split(inputs: Tensor, labels: Tensor, source: torch.Generator) -> Split:
    order = torch.randperm(len(labels), generator=source)
    test = torch.arange(len(labels)) % TEST_EVERY == 0
    train_rows, test_rows = order[~test], order[test]
    return Split(inputs[train_rows], labels[train_rows], inputs[test_rows], labels[test_rows])
