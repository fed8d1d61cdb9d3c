"""What `--data` says: which data set, from which folder. Torch-free; hostlib.datasets.batches has them."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import RunError, UnknownNameError
from hostlib.text.name_options import option_value

SYNTHETIC_EXAMPLES = 320

# Shape of one example, and classes, of what is read rather than made.
READ = {"digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10)}
LEGAL = ("digits", "mnist:FOLDER", "cifar10:FOLDER", "synthetic", "synthetic:examples=N")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set.

    Attributes:
        folder: where its files are; empty for one without.
        examples: how many are made of synthetic data, a fifth of them to test with.
    """

    name: str
    folder: str = ""
    examples: int = SYNTHETIC_EXAMPLES

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one example; None where the model decides."""
        return READ[self.name][0] if self.name in READ else None

    @property
    def classes(self) -> int | None:
        """How many there are; None where the model decides."""
        return READ[self.name][1] if self.name in READ else None


def parse_dataset(text: str) -> Dataset:
    """`digits`, `mnist:FOLDER`, `cifar10:FOLDER`, `synthetic` or `synthetic:examples=N`.

    Raises:
        UnknownNameError: there is no such data set.
        RunError: its folder or its number is missing, or it has none.
    """
    name, _, rest = text.partition(":")
    if name in ("mnist", "cifar10"):
        if not rest:
            raise RunError(f"--data {name} needs the folder that its files are in: {name}:FOLDER")
        return Dataset(name, rest)
    if name == "synthetic" and rest:
        option, _, number = rest.partition("=")
        if option != "examples":
            raise UnknownNameError("option of synthetic", option, ["examples"])
        examples = option_value("synthetic:examples", int, number)
        if examples < 5:
            raise RunError(f"synthetic:examples must be at least 5, of which one is to test with, not {examples}")
        return Dataset(name, examples=examples)
    if name not in ("digits", "synthetic") or rest:
        raise UnknownNameError("data set", text, LEGAL)
    return Dataset(name)
