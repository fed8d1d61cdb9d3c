"""The engine's check words for a place in a job."""

from __future__ import annotations

from hostlib import _engine
from hostlib.fabric.job_client import Place
from hostlib.protocol.check_words import CheckWords, check_words


def of_sums(place: Place) -> _engine.CheckWords:
    """Of contributions and their sums over all of the job's ranks."""
    return for_engine(check_words(place.secret, place.world_size, place.elements))


def of_chunks(place: Place) -> _engine.CheckWords:
    """Of streams of chunks, and of NACKs: nothing is summed."""
    return for_engine(check_words(place.secret, 1, place.elements))


def for_engine(words: CheckWords) -> _engine.CheckWords:
    """The same numbers for the engine."""
    numbers = (words.elements, words.ranks, words.codes)
    return _engine.CheckWords(words.prime, words.fields, *(each.tolist() for each in numbers))
