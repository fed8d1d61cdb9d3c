"""How exact sums over a switch are: the table of docs/torch.md, computed again by the reference."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hostlib.protocol import block_float
from tests.conftest import ROOT

RANKS, COUNT, ELEMENTS, SLOTS = 8, 32_768, 256, 128
PAGE = (ROOT / "docs/torch.md").read_text()


def drawn(what: str) -> np.ndarray:
    """Values of all ranks, float32 (RANKS, COUNT)."""
    draw = np.random.default_rng(1)
    values = draw.standard_normal((RANKS, COUNT))
    if what == "one of 10,000 among values of 0.0001":
        values *= 1e-4
        values[0, 20_000] = 1e4
    elif what == "eight layers, each of values 10 times as small as the last":
        values *= 10.0 ** -(np.arange(COUNT) * 8 // COUNT)
    elif what == "Student's, two degrees of freedom":
        values = draw.standard_t(2, (RANKS, COUNT))
    else:
        assert what == "normal"
    return values.astype(np.float32)


def errors(summed: np.ndarray, values: np.ndarray) -> tuple[str, str]:
    """Median and 99 % of the relative errors of a sum."""
    exact = values.astype(np.float64).sum(axis=0)
    found = np.abs(summed - exact) / np.abs(exact)
    return f"{np.median(found):.0e}", f"{np.quantile(found, 0.99):.0e}"


def in_turn(values: np.ndarray) -> np.ndarray:
    """A ring's sum: float32, one rank after the other."""
    total = values[0].copy()
    for each in values[1:]:
        total += each
    return total


ROWS = re.findall(r"^\| (normal|one of .*?|eight layers.*?|Student.*?) \| (.+?), (.+?) \| (.+?), (.+?) \|$", PAGE, re.M)


def test_the_table_is_there() -> None:
    assert len(ROWS) == 4


@pytest.mark.parametrize(("what", "median", "most", "ring_median", "ring_most"), ROWS, ids=[row[0] for row in ROWS])
def test_errors_are_what_the_page_says(what: str, median: str, most: str, ring_median: str, ring_most: str) -> None:
    values = drawn(what)
    assert errors(block_float.allreduce(list(values), ELEMENTS, SLOTS), values) == (median, most)
    assert errors(in_turn(values), values) == (ring_median, ring_most)


def test_a_special_value_concerns_its_block_alone() -> None:
    values = drawn("normal")
    values[3, 5], values[4, 20_000] = np.nan, np.inf
    found = block_float.allreduce(list(values), ELEMENTS, SLOTS)
    assert np.count_nonzero(~np.isfinite(found)) == 2 * ELEMENTS
    assert "The other 255 values" in PAGE
