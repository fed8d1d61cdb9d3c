"""Data sets split for training and testing, and each rank's batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hostlib.datasets.dataset import TEST_EVERY
from hostlib.errors import RunError

PIXEL_MAX = 16.0


@dataclass(frozen=True, slots=True)
class Split:
    """Training and test examples.

    Images are float32 (N, channels, height, width) in -1..1 and labels int64 (N,). For language models, tokens are
    int64 (N, T) and labels the tokens that follow them, int64 (N, T).
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(seed: int) -> Split:
    """Load scikit-learn's digits: 1,797 real images of 8x8 pixels (from the UCI repository), which come with the
    package.

    A stratified split, 80 % for training; the same for the same seed.

    Raises:
        RunError: scikit-learn is not installed, or has no digits.
    """
    table = _table()
    images = torch.from_numpy(table[:, :-1] / (PIXEL_MAX / 2) - 1).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    order = np.random.default_rng(seed).permutation(len(table))
    by_label = order[np.argsort(table[order, -1], kind="stable")]
    test = np.arange(len(table)) % TEST_EVERY == 0
    train_rows, test_rows = torch.from_numpy(by_label[~test]), torch.from_numpy(by_label[test])
    return Split(images[train_rows], labels[train_rows], images[test_rows], labels[test_rows])


def _table() -> np.ndarray:
    """Read the digits: float32 (N, 65), 64 pixels from 0 to 16, and the label.

    Read from scikit-learn's own file: importing the package loads SciPy, which takes every rank another second.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise RunError("the digits come with scikit-learn, which is not installed (pip install 'netfold[train]')")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        raise RunError(f"this scikit-learn has no digits that can be read at {path}: {error}") from error


@cache
def _read(path: Path) -> np.ndarray:
    return np.loadtxt(path, np.float32, delimiter=",")


def batches(examples: int, batch_size: int, rank: int, world_size: int, seed: int, epoch: int) -> Iterator[Tensor]:
    """This rank's batches of one epoch, as indices; all ranks get equally many, and the remainder is left out.

    Args:
        batch_size: per rank.
    """
    order = np.random.default_rng((seed, epoch)).permutation(examples)
    step = batch_size * world_size
    for start in range(0, examples - step + 1, step):
        yield torch.from_numpy(order[start + rank * batch_size : start + (rank + 1) * batch_size])
