"""Read images from a folder that has one folder for each class, as ImageNet is distributed."""

from __future__ import annotations

from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hostlib.datasets.batches import Split
from hostlib.datasets.dataset import TEST_EVERY
from hostlib.errors import RunError

ENDINGS = (".jpeg", ".jpg", ".png", ".bmp", ".webp")
MODES = {1: "L", 3: "RGB"}
BYTE_MAX = 255
MOST_BYTES = 4 << 30  # of all images in memory
FLOAT_BYTES = 4


def image_folder(folder: str, shape: tuple[int, ...], classes: int, examples: int, seed: int) -> Split:
    """Read images, scaled so that their shorter side fits and cut to the middle. Images float32 (N, *shape) in -1..1.

    Classes are the folders in alphabetical order. They take turns, so that a few examples are of many classes.

    Args:
        shape: channels, height, width.
        classes: of the model; the folder may have fewer.
        examples: to read, at most.

    Raises:
        RunError: there are no such folders, too many of them, too few images or too many, or a broken one; Pillow is
            missing.
    """
    if len(shape) != 3 or shape[0] not in MODES:
        raise RunError(f"{folder} has images, and the model takes {'x'.join(map(str, shape))}")
    chosen = list(islice(_in_turns(_by_class(Path(folder), classes)), examples))
    if len(chosen) < TEST_EVERY:
        raise RunError(f"{folder} has {len(chosen)} images; at least {TEST_EVERY} are needed (a fifth is for testing)")
    size = len(chosen) * int(np.prod(shape)) * FLOAT_BYTES
    if size > MOST_BYTES:
        raise RunError(
            f"{folder}: {len(chosen):,} images would need {size >> 30} GiB of memory; images:{folder}:examples=N reads fewer"
        )
    images = torch.empty(len(chosen), *shape)
    for place, (path, _) in enumerate(chosen):
        images[place] = torch.from_numpy(_pixels(path, shape)).float().div_(BYTE_MAX / 2).sub_(1)
    labels = torch.tensor([label for _, label in chosen])
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
    test = torch.arange(len(chosen)) % TEST_EVERY == 0
    train_rows, test_rows = order[~test], order[test]
    return Split(images[train_rows], labels[train_rows], images[test_rows], labels[test_rows])


def _by_class(folder: Path, classes: int) -> list[list[Path]]:
    """The images of each class, by name."""
    try:
        folders = sorted(each for each in folder.iterdir() if each.is_dir())
        found = [sorted(x for x in each.iterdir() if x.suffix.lower() in ENDINGS) for each in folders]
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}") from None
    if not any(found):
        raise RunError(f"{folder} has no folders of images, one for each class ({', '.join(ENDINGS)})")
    if len(found) > classes:
        raise RunError(f"{folder} has {len(found)} classes, and the model {classes}")
    return found


def _in_turns(by_class: list[list[Path]]) -> Any:
    """Yield (path, label), the first image of every class before the second of any."""
    labelled = ([(path, label) for path in paths] for label, paths in enumerate(by_class))
    return filter(None, chain.from_iterable(zip_longest(*labelled)))


def _pixels(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """One image, uint8 of the shape."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise RunError("reading images needs Pillow: pip install pillow") from None
    channels, height, width = shape
    try:
        with Image.open(path) as image:
            fitted = ImageOps.fit(image.convert(MODES[channels]), (width, height))
            return np.array(fitted, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunError(f"{path} is not an image that Pillow reads: {error}") from error
