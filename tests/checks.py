"""Check words for tests: of jobs whose secret no controller has made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hostlib import _engine
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol.check_words import CheckWords, check_words
from hostlib.protocol.header import Header

SECRET = "000102030405060708090a0b0c0d0e0f"


def checks(ranks: int, elements: int) -> CheckWords:
    """Of a job of so many ranks; 1 for chunks."""
    return check_words(SECRET, ranks, elements)


def engine_checks(ranks: int, elements: int, secret: str = SECRET) -> _engine.CheckWords:
    """The same for the engine."""
    return for_engine(check_words(secret, ranks, elements))


def packed(of: Header, words: np.ndarray, checks: CheckWords, ranks: Sequence[int]) -> bytes:
    """A packet with the sum of these ranks' check words, unless its header has one."""
    check = of.check or checks.word(of, words, ranks)
    return replace(of, check=check).pack() + words.astype(">i4").tobytes()
