"""Parse `--data`: which data set, from which folder. Torch-free; hostlib.datasets.batches loads them."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import RunError, UnknownNameError
from hostlib.text.name_options import option_value

SYNTHETIC_EXAMPLES = 320

# Shape of one example, and classes, of data sets that are read from files.
READ = {"digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10)}
LEGAL = ("digits", "mnist:FOLDER", "cifar10:FOLDER", "synthetic", "synthetic:examples=N")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set.

    Attributes:
        folder: of its files; empty for a data set without files.
        examples: number of synthetic examples, a fifth of them for testing.
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


def parse_dataset(text: str) -> Dataset:
    """Parse `digits`, `mnist:FOLDER`, `cifar10:FOLDER`, `synthetic` or `synthetic:examples=N`.

    Raises:
        UnknownNameError: there is no such data set.
        RunError: its folder or number is missing or superfluous.
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
            raise RunError(f"synthetic:examples must be at least 5 (a fifth is for testing), not {examples}")
        return Dataset(name, examples=examples)
    if name not in ("digits", "synthetic") or rest:
        raise UnknownNameError("data set", text, LEGAL)
    return Dataset(name)
