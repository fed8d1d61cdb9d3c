"""Parse `--data`: which data set, from which folder. Torch-free; hostlib.datasets.batches loads them."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import RunError, UnknownNameError
from hostlib.text.name_options import option_value

SYNTHETIC_EXAMPLES = 320
TEST_EVERY = 5  # of the examples, one is for testing

# Shape of one example, and classes, of data sets that are read from files.
READ = {"digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10)}
LEGAL = ("digits", "mnist:FOLDER", "cifar10:FOLDER", "images:FOLDER", "images:FOLDER:examples=N", "synthetic",
         "synthetic:examples=N")  # fmt: skip
MOST_EXAMPLES = 10**9


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set.

    Attributes:
        folder: of its files; empty for a data set without files.
        examples: number of synthetic examples, a fifth of them for testing; of `images`, at most.
    """

    name: str
    folder: str = ""
    examples: int = SYNTHETIC_EXAMPLES

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one example; None if the model determines it."""
        return READ[self.name][0] if self.name in READ else None

    @property
    def classes(self) -> int | None:
        """Number of classes; None if the model determines it."""
        return READ[self.name][1] if self.name in READ else None


def examples_for(training: int) -> int:
    """How many examples there must be so that so many are for training."""
    return max(TEST_EVERY, -(-training * TEST_EVERY // (TEST_EVERY - 1)) + 1)


def parse_dataset(text: str) -> Dataset:
    """Parse `digits`, `mnist:FOLDER`, `cifar10:FOLDER`, `images:FOLDER[:examples=N]` or `synthetic[:examples=N]`.

    Raises:
        UnknownNameError: there is no such data set.
        RunError: its folder or number is missing or superfluous.
    """
    name, _, rest = text.partition(":")
    if name in ("mnist", "cifar10"):
        if not rest:
            raise RunError(f"--data {name} needs the folder that its files are in: {name}:FOLDER")
        return Dataset(name, rest)
    if name == "images":
        folder, colon, number = rest.rpartition(":examples=")
        if not (folder if colon else rest):
            raise RunError("--data images needs the folder that has a folder for each class: images:FOLDER")
        return Dataset(name, folder, _examples(name, number)) if colon else Dataset(name, rest, MOST_EXAMPLES)
    if name == "synthetic" and rest:
        option, _, number = rest.partition("=")
        if option != "examples":
            raise UnknownNameError("option of synthetic", option, ["examples"])
        return Dataset(name, examples=_examples(name, number))
    if name not in ("digits", "synthetic") or rest:
        raise UnknownNameError("data set", text, LEGAL)
    return Dataset(name)


def _examples(name: str, number: str) -> int:
    examples: int = option_value(f"{name}:examples", int, number)
    if examples < TEST_EVERY:
        raise RunError(f"{name}:examples must be at least {TEST_EVERY} (a fifth is for testing), not {examples}")
    return examples
