"""Check words for tests: of jobs whose secret no controller has made."""

from __future__ import annotations

from hostlib import _engine
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol.check_words import CheckWords, check_words

SECRET = "000102030405060708090a0b0c0d0e0f"


def checks(ranks: int, elements: int) -> CheckWords:
    """Of a job of so many ranks; 1 for chunks."""
    return check_words(SECRET, ranks, elements)


def engine_checks(ranks: int, elements: int, secret: str = SECRET) -> _engine.CheckWords:
    """The same for the engine."""
    return for_engine(check_words(secret, ranks, elements))
