"""scikit-learn's digits: 1,797 real images of 8x8 pixels (from the UCI repository), which come with the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

TEST_SHARE = 0.2
PIXEL_MAX = 16.0


@dataclass(frozen=True, slots=True)
class Split:
    """Images float32 (N, 1, 8, 8) in -1..1, labels int64 (N,)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(seed: int) -> Split:
    """The digits in a stratified split, 80 % for training; the same for the same seed."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=TEST_SHARE, random_state=seed, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts

    def pictures(rows: np.ndarray) -> Tensor:
        return torch.from_numpy((rows / (PIXEL_MAX / 2) - 1).astype(np.float32)).reshape(-1, 1, 8, 8)

    return Split(
        pictures(train_images),
        torch.from_numpy(train_labels.astype(np.int64)),
        pictures(test_images),
        torch.from_numpy(test_labels.astype(np.int64)),
    )


def batches(examples: int, batch_size: int, rank: int, world_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """This rank's batches of one epoch, as indices; every rank gets equally many, the rest of the epoch is left out.

    Args:
        batch_size: per rank.
    """
    order = np.random.default_rng((seed, epoch)).permutation(examples)
    step = batch_size * world_size
    for start in range(0, examples - step + 1, step):
        yield torch.from_numpy(order[start + rank * batch_size : start + (rank + 1) * batch_size])
