"""MNIST and CIFAR-10 from files as they are published, synthetic data, and models that fit data."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from hostlib.datasets.batches import Split, digits
from hostlib.datasets.dataset import Dataset, parse_dataset
from hostlib.datasets.image_files import cifar10, mnist
from hostlib.datasets.image_folder import image_folder
from hostlib.datasets.pairing import load_data, load_fitting
from hostlib.datasets.synthetic import synthetic_images, synthetic_tokens
from hostlib.errors import HostlibError, ModelError, RunError
from hostlib.models.small import LeNet
from hostlib.train.options import TrainOptions

RANDOM = np.random.default_rng(1)


# ---- MNIST -----------------------------------------------------------------------------------------------------------


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "") -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": RANDOM.integers(256, size=(6, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": RANDOM.integers(10, size=6, dtype=np.uint8),
        "t10k-images-idx3-ubyte": RANDOM.integers(256, size=(3, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": RANDOM.integers(10, size=3, dtype=np.uint8),
    }
    for name, array in arrays.items():
        write_idx(folder / f"{name}{suffix}", array)
    return arrays


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist_is_read_as_it_is_published(tmp_path: Path, suffix: str) -> None:
    wrote = write_mnist(tmp_path, suffix)
    split = mnist(str(tmp_path))
    assert (split.train_images.shape, split.test_images.shape) == ((6, 1, 28, 28), (3, 1, 28, 28))
    assert (split.train_images.dtype, split.train_labels.dtype) == (torch.float32, torch.int64)
    back = ((split.train_images[:, 0] + 1) * 127.5).round().to(torch.uint8).numpy()
    assert np.array_equal(back, wrote["train-images-idx3-ubyte"])
    assert split.test_labels.tolist() == wrote["t10k-labels-idx1-ubyte"].tolist()


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            Path.unlink,
            "has no train-images-idx3-ubyte or train-images-idx3-ubyte.gz of MNIST, which is published at http",
        ),
        (_shorten, "bytes; by its header it should have"),
        (lambda path: path.write_bytes(b"PK"), "is not an idx file of bytes with 3 dimensions"),
        (lambda path: write_idx(path, np.zeros((5, 28, 28), np.uint8)), "train has 5 images and 6 labels"),
        (lambda path: write_idx(path, np.zeros((6, 8, 8), np.uint8)), "has images of 8x8, MNIST of 28x28"),
        (lambda path: write_idx(path, np.zeros(6, np.uint8)), "is not an idx file of bytes with 3 dimensions"),
    ],
)
def test_what_is_not_mnist_is_named(tmp_path: Path, spoil: Callable[[Path], Any], says: str) -> None:
    write_mnist(tmp_path)
    spoil(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(RunError) as raised:
        mnist(str(tmp_path))
    assert says in str(raised.value)


def test_mnist_has_ten_classes_and_whole_archives(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 2, 10], np.uint8))
    with pytest.raises(RunError, match="t10k has labels from 1 to 10, not from 0 to 9"):
        mnist(str(tmp_path))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"x" * 100)[:-9])
    with pytest.raises(RunError, match=r"idx1-ubyte.gz cannot be read"):
        mnist(str(tmp_path))


# ---- CIFAR-10 --------------------------------------------------------------------------------------------------------


class OldPickler(pickle._Pickler):
    """As Python 2 wrote CIFAR-10's batches: bytes as its str, NumPy's module by its old name."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_old(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_old

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj is np.empty(0).__reduce__()[0]:
            self.write(pickle.GLOBAL + b"numpy.core.multiarray\n_reconstruct\n")
        else:
            super().save_global(obj, name)

    dispatch[type(np.empty(0).__reduce__()[0])] = save_global


BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def write_pickled(folder: Path, pixels: np.ndarray, labels: list[int], name: str) -> None:
    with (folder / name).open("wb") as file:
        OldPickler(file, protocol=2).dump(
            {b"batch_label": b"some", b"labels": labels, b"data": pixels, b"filenames": []}
        )


def write_binary(folder: Path, pixels: np.ndarray, labels: list[int], name: str) -> None:
    (folder / f"{name}.bin").write_bytes(np.column_stack([np.array(labels, np.uint8), pixels]).tobytes())


@pytest.mark.parametrize(
    ("write", "inner"),
    [
        (write_pickled, ""),
        (write_pickled, "cifar-10-batches-py"),
        (write_binary, ""),
        (write_binary, "cifar-10-batches-bin"),
    ],
)
def test_cifar10_is_read_as_it_is_published(tmp_path: Path, write: Callable[..., None], inner: str) -> None:
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    pixels = RANDOM.integers(256, size=(12, 3072), dtype=np.uint8)
    labels = RANDOM.integers(10, size=12).tolist()
    for number, name in enumerate(BATCHES):
        write(folder, pixels[2 * number : 2 * number + 2], labels[2 * number : 2 * number + 2], name)
    split = cifar10(str(tmp_path))
    assert (split.train_images.shape, split.test_images.shape) == ((10, 3, 32, 32), (2, 3, 32, 32))
    back = ((split.train_images + 1) * 127.5).round().to(torch.uint8).numpy()
    assert np.array_equal(back.reshape(10, 3072), pixels[:10])  # red, green, blue, each row by row
    assert split.train_labels.tolist() + split.test_labels.tolist() == labels


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": Malicious(tmp_path / "made")}))
    with pytest.raises(
        RunError, match=r"is not a batch of CIFAR-10: UnpicklingError: it asks for posix.mkdir, which no"
    ):
        cifar10(str(tmp_path))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "has no data_batch_1 or data_batch_1.bin of CIFAR-10, which is published at https"),
        (b"\x80\x02}", "is not a batch of CIFAR-10: EOFError"),
        (b"hello", "is not a batch of CIFAR-10: "),
        (pickle.dumps([1, 2]), "is not a batch of CIFAR-10: TypeError"),
        (pickle.dumps({b"data": [[1, 2]], b"labels": [1]}), "its data is int64 of shape (1, 2)"),
    ],
)
def test_what_is_not_cifar10_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(RunError) as raised:
        cifar10(str(tmp_path))
    assert says in str(raised.value)


def test_a_binary_batch_is_whole_and_has_ten_classes(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3074))
    with pytest.raises(RunError, match="has 3074 bytes, not a multiple of 3073"):
        cifar10(str(tmp_path))
    write_binary(tmp_path, np.zeros((1, 3072), np.uint8), [11], "data_batch_1")
    with pytest.raises(RunError, match=r"data_batch_1\.bin has labels from 11 to 11"):
        cifar10(str(tmp_path))


# ---- synthetic -------------------------------------------------------------------------------------------------------


def tensors(split: Split) -> list[torch.Tensor]:
    return [split.train_images, split.train_labels, split.test_images, split.test_labels]


def test_synthetic_images_come_from_the_seed_and_can_be_learnt() -> None:
    split = synthetic_images((3, 20, 20), classes=4, examples=200, seed=1)
    assert (len(split.train_labels), len(split.test_labels)) == (160, 40)
    again, other = (tensors(synthetic_images((3, 20, 20), 4, 200, seed)) for seed in (1, 2))
    assert all(torch.equal(a, b) for a, b in zip(tensors(split), again, strict=True))
    assert not torch.equal(split.train_images, other[0])
    assert torch.bincount(split.train_labels, minlength=4).min() >= 30
    # The nearest mean of the training images tells what a test image is.
    means = torch.stack([split.train_images[split.train_labels == c].mean(0) for c in range(4)])
    nearest = torch.cdist(split.test_images.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == split.test_labels).float().mean() > 0.95
    assert (split.train_images[0] - split.train_images[1]).abs().max() > 0.5  # but no two are alike


def test_synthetic_data_has_any_shape() -> None:
    assert synthetic_images((7,), classes=3, examples=10, seed=1).train_images.shape == (8, 7)
    assert synthetic_images((1, 8, 8), classes=1001, examples=10, seed=1).train_labels.max() < 10


def test_synthetic_tokens_mostly_follow_a_rule() -> None:
    split = synthetic_tokens(16, vocabulary=50, examples=100, seed=1)
    assert split.train_images.shape == split.train_labels.shape == (80, 16)
    assert torch.equal(split.train_images[:, 1:], split.train_labels[:, :-1])
    rule = {}
    for token, then in zip(split.train_images.flatten().tolist(), split.train_labels.flatten().tolist(), strict=True):
        rule.setdefault(token, []).append(then)
    guess = {token: max(set(seen), key=seen.count) for token, seen in rule.items()}
    pairs = zip(split.test_images.flatten().tolist(), split.test_labels.flatten().tolist(), strict=True)
    right = [guess[token] == then for token, then in pairs]
    assert 0.8 < sum(right) / len(right) < 1


# ---- what --data says --------------------------------------------------------------------------------------------------


def test_data_sets_by_name() -> None:
    assert parse_dataset("digits") == Dataset("digits")
    assert parse_dataset("mnist:/data/a:b").folder == "/data/a:b"
    assert (parse_dataset("cifar10:x").shape, parse_dataset("cifar10:x").classes) == ((3, 32, 32), 10)
    assert (parse_dataset("synthetic").shape, parse_dataset("synthetic:examples=50").examples) == (None, 50)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("imagenet", "unknown data set 'imagenet'; legal are cifar10:FOLDER, digits, images:FOLDER, images:FOLDER:ex"),
        ("mnist", "--data mnist needs the folder that its files are in: mnist:FOLDER"),
        ("cifar10:", "--data cifar10 needs the folder"),
        ("digits:x", "unknown data set 'digits:x'"),
        ("synthetic:size=3", "unknown option of synthetic 'size'; legal are examples"),
        ("synthetic:examples=many", "synthetic:examples takes a number, not 'many'"),
        ("synthetic:examples=4", "synthetic:examples must be at least 5"),
    ],
)
def test_what_is_no_data_set_is_answered_with_what_is(text: str, says: str) -> None:
    with pytest.raises(HostlibError) as raised:
        TrainOptions(data=text, mechanism="ring")
    assert str(raised.value).startswith(says)


# ---- models that fit data ------------------------------------------------------------------------------------------------


def test_the_digits_have_small_versions() -> None:
    assert isinstance(load_fitting("lenet", Dataset("digits")), LeNet)
    large = load_fitting("lenet", Dataset("mnist"))
    assert (large.input_shape, large.classes) == ((1, 28, 28), 10)


@pytest.mark.parametrize("data", [Dataset("digits"), Dataset("mnist"), Dataset("cifar10"), Dataset("synthetic")])
def test_networks_are_made_for_the_data(data: Dataset) -> None:
    model = load_fitting("mobilenet2", data)
    assert model.input_shape == (data.shape or (3, 224, 224))
    assert model.classes == (data.classes or 1000)
    assert list(model.buffers()) == []  # group normalisation: nothing that ranks would have to agree on but the weights


def test_what_is_said_of_a_network_stays() -> None:
    model = load_fitting("mobilenet2:classes=20:norm=batch", Dataset("cifar10"))
    assert (model.classes, len(list(model.buffers())) > 0) == (20, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "alexnet",
            "AlexNet takes images of 67 pixels or more, not 8; digits has images of 1x8x8 in 10 classes, --data syn",
        ),
        ("gpt2", "gpt2 takes tokens, such as 1024, not 1x8x8; digits has"),
        ("torch.nn:Identity", "torch.nn:Identity does not fit: it returns 1x8x8 numbers; digits has"),
        ("torch.nn:Linear", "torch.nn:Linear does not build a model: TypeError"),
        ("hostlib.models.small:SmallVGG", None),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(text: str, says: str | None) -> None:
    if says is None:
        load_fitting(text, Dataset("digits"))
        return
    with pytest.raises(ModelError) as raised:
        load_fitting(text, Dataset("digits"))
    assert str(raised.value).startswith(says) and "\n" not in str(raised.value)


def test_a_users_model_that_takes_something_else_does_not_fit() -> None:
    with pytest.raises(
        ModelError, match=r"^hostlib.models.small:LeNet does not fit: the model does not take an input of 3x32x32"
    ):
        load_fitting("hostlib.models.small:LeNet", Dataset("cifar10"))


def test_synthetic_data_is_what_the_model_takes() -> None:
    data = Dataset("synthetic", examples=10)
    split = load_data(data, load_fitting("lenet:classes=5", data), seed=1)
    assert (split.train_images.shape, int(split.train_labels.max())) == ((8, 3, 28, 28), 4)
    split = load_data(data, load_fitting("gpt2:classes=20:context=6:layers=1:width=8:heads=2", data), seed=1)
    assert (split.train_images.shape, split.train_images.dtype) == ((8, 6), torch.int64)
    split = load_data(data, load_fitting("hostlib.models.small:SmallVGG", data), seed=1)
    assert split.train_images.shape == (8, 1, 8, 8)


def test_the_digits_are_as_ever() -> None:
    model = load_fitting("lenet", Dataset("digits"))
    assert torch.equal(load_data(Dataset("digits"), model, 3).test_images, digits(3).test_images)


DECIDES = """
from torch import nn

class Decides(nn.Module):
    input_shape = (1, 8, 8)
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        x = self.layer(x.flatten(1))
        return x if x.sum() > 0 else -x

class Says(Decides):
    classes = 10
"""


def test_a_model_that_decides_by_contents_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decides_when_trained.py").write_text(DECIDES)
    monkeypatch.chdir(tmp_path)
    assert load_fitting("decides_when_trained:Decides", Dataset("digits"))(torch.ones(1, 1, 8, 8)).shape == (1, 10)
    synthetic = Dataset("synthetic", examples=20)
    with pytest.raises(ModelError, match=r"depends on values .*; set the model's attribute classes to their number"):
        load_data(synthetic, load_fitting("decides_when_trained:Decides", synthetic), seed=0)
    made = load_data(synthetic, load_fitting("decides_when_trained:Says", synthetic), seed=0)
    assert made.train_images.shape == (16, 1, 8, 8)


def write_images(folder: Path, classes: int, each: int) -> None:
    """Images of one colour: class k's are k * 20 bright, 30 x 40 pixels, with a black left edge that is cut off."""
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            image = Image.new("RGB", (40, 30), (label * 20,) * 3)
            image.paste((0, 0, 0), (0, 0, 2, 30))
            image.save(folder / f"class{label}" / f"{number}.png")


def test_a_folder_of_images_is_read_for_the_model(tmp_path: Path) -> None:
    write_images(tmp_path, 4, 6)
    (tmp_path / "class0" / "notes.txt").write_text("no image")
    split = image_folder(str(tmp_path), (3, 24, 24), 10, 10, seed=1)
    assert split.train_images.shape == (8, 3, 24, 24) and split.test_images.shape == (2, 3, 24, 24)
    images, labels = (
        torch.cat([split.train_images, split.test_images]),
        torch.cat([split.train_labels, split.test_labels]),
    )
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]  # classes take turns
    assert torch.allclose(images, (labels * 20 / 127.5 - 1)[:, None, None, None].expand_as(images))
    grey = image_folder(str(tmp_path), (1, 8, 8), 4, 1000, seed=1)
    assert len(grey.train_labels) == 19 and grey.train_images.shape[1:] == (1, 8, 8)

    data = parse_dataset(f"images:{tmp_path}:examples=10")
    model = load_fitting("resnet18:variant=mnist", data)
    assert load_data(data, model, 1).train_images.shape == (8, 1, 28, 28)


@pytest.mark.parametrize(
    ("classes", "each", "examples", "says"),
    [
        (0, 0, 10, "has no folders of images, one for each class"),
        (2, 2, 10, "has 4 images; at least 5 are needed"),
        (11, 1, 10, "has 11 classes, and the model 10"),
    ],
)
def test_what_is_no_folder_of_images_is_named(
    tmp_path: Path, classes: int, each: int, examples: int, says: str
) -> None:
    write_images(tmp_path, classes, each)
    with pytest.raises(RunError, match=says):
        image_folder(str(tmp_path), (3, 8, 8), 10, examples, seed=1)


def test_a_broken_image_is_named_and_memory_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, 2, 3)
    with monkeypatch.context() as less, pytest.raises(RunError, match="examples=N reads fewer"):
        less.setattr("hostlib.datasets.image_folder.MOST_BYTES", 1000)
        image_folder(str(tmp_path), (3, 8, 8), 10, 10, seed=1)
    (tmp_path / "class1" / "0.png").write_text("no image")
    with pytest.raises(RunError, match=r"class1/0.png is not an image that Pillow reads"):
        image_folder(str(tmp_path), (3, 8, 8), 10, 10, seed=1)
    with pytest.raises(RunError, match="nowhere cannot be read"):
        image_folder(str(tmp_path / "nowhere"), (3, 8, 8), 10, 10, seed=1)
