"""Read MNIST and CIFAR-10 from their published files."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hostlib.datasets.batches import Split
from hostlib.errors import RunError

BYTE_MAX = 255
MNIST_PIXELS = 28
MNIST_HOME = "http://yann.lecun.com/exdb/mnist/ (or https://ossci-datasets.s3.amazonaws.com/mnist/)"
IDX_UNSIGNED_BYTE = 8
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR_SHAPE = (3, 32, 32)
CIFAR_BYTES = 3 * 32 * 32
CIFAR_FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")  # names in its archives
CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CLASSES = 10


def mnist(folder: str) -> Split:
    """Read MNIST from its four idx files, gzipped or not. Images float32 (N, 1, 28, 28).

    Raises:
        RunError: a file is missing, or is not one of MNIST's; the message says where they are published.
    """
    parts: list[Tensor] = []
    for part in ("train", "t10k"):
        images = _idx(_idx_path(Path(folder), f"{part}-images", "idx3-ubyte"), 3)
        labels = _idx(_idx_path(Path(folder), f"{part}-labels", "idx1-ubyte"), 1)
        _require_fit(folder, part, images, labels)
        if images.shape[1:] != (MNIST_PIXELS, MNIST_PIXELS):
            raise RunError(f"{folder}: {part}-images has images of {images.shape[1]}x{images.shape[2]}, MNIST of 28x28")
        parts += [_images(images[:, None]), _labels(labels)]
    return Split(*parts)


def cifar10(folder: str) -> Split:
    """Read CIFAR-10 from its Python or its binary version. Images float32 (N, 3, 32, 32).

    Raises:
        RunError: a file is missing, or is not one of CIFAR-10's; the message says where they are published.
    """
    parts = [_cifar_batch(_cifar_path(Path(folder), name)) for name in CIFAR_BATCHES]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts[:-1], strict=True))
    return Split(_images(images), _labels(labels), _images(parts[-1][0]), _labels(parts[-1][1]))


def _images(pixels: np.ndarray) -> Tensor:
    """Scale 0..255 to float32 in -1..1."""
    return torch.from_numpy(pixels.astype(np.float32)).div_(BYTE_MAX / 2).sub_(1)


def _labels(labels: np.ndarray) -> Tensor:
    return torch.from_numpy(labels.astype(np.int64))


def _require_fit(where: object, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    if len(images) != len(labels) or not len(labels):
        raise RunError(f"{where}: {part} has {len(images)} images and {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise RunError(f"{where}: {part} has labels from {labels.min()} to {labels.max()}, not from 0 to {CLASSES - 1}")


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


# ---- idx -------------------------------------------------------------------------------------------------------------


def _idx_path(folder: Path, name: str, kind: str) -> Path:
    # Some unpackers replace the hyphen by a full stop.
    for candidate in (f"{name}-{kind}", f"{name}-{kind}.gz", f"{name}.{kind}", f"{name}.{kind}.gz"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise RunError(f"{folder} has no {name}-{kind} or {name}-{kind}.gz of MNIST, which is published at {MNIST_HOME}")


def _idx(path: Path, dimensions: int) -> np.ndarray:
    """Read an idx file: uint8, with `dimensions` dimensions.

    Source: the description of the format beside MNIST: two zeros, type, dimensions, extents (big-endian), elements.
    """
    content = _bytes(path)
    start = 4 + 4 * dimensions
    if len(content) < start or content[:4] != bytes((0, 0, IDX_UNSIGNED_BYTE, dimensions)):
        raise RunError(f"{path} is not an idx file of bytes with {dimensions} dimensions")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4)
    expected = start + int(np.prod(shape, dtype=np.uint64))
    if len(content) != expected:
        raise RunError(f"{path} has {len(content)} bytes; by its header it should have {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(*shape)


# ---- CIFAR-10 --------------------------------------------------------------------------------------------------------


def _cifar_path(folder: Path, name: str) -> Path:
    for inner in CIFAR_FOLDERS:
        for candidate in (folder / inner / name, folder / inner / f"{name}.bin"):
            if candidate.is_file():
                return candidate
    raise RunError(f"{folder} has no {name} or {name}.bin of CIFAR-10, which is published at {CIFAR_HOME}")


def _cifar_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read a batch: images uint8 (N, 3, 32, 32), labels (N,)."""
    pixels, labels = _binary(path) if path.suffix == ".bin" else _pickled(path)
    _require_fit(path.parent, path.name, pixels, labels)
    return pixels.reshape(-1, *CIFAR_SHAPE), labels


def _binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = _bytes(path)
    if len(content) % (1 + CIFAR_BYTES):
        raise RunError(
            f"{path} has {len(content)} bytes, not a multiple of {1 + CIFAR_BYTES}, the size of an image with its label"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + CIFAR_BYTES)
    return rows[:, 1:], rows[:, 0]


def _pickled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the Python version: a dictionary with b"data", uint8 (N, 3072), and b"labels", a list."""
    content = _bytes(path)
    try:
        batch = _Plain(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise RunError(f"{path} is not a batch of CIFAR-10: {type(error).__name__}: {error}") from error
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != CIFAR_BYTES or labels.ndim != 1:
        raise RunError(f"{path} is not a batch of CIFAR-10: its data is {pixels.dtype} of shape {pixels.shape}")
    return pixels, labels


_RECONSTRUCT = np.empty(0).__reduce__()[0]


class _Plain(pickle.Unpickler):
    """Unpickler that only creates NumPy arrays: a pickle can run code, and these files are untrusted."""

    LEGAL: ClassVar = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.LEGAL:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR-10 needs")
        return self.LEGAL[module, name]
