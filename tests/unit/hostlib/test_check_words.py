"""What a job's check words show, and that they are derived as docs/protocol.md says."""

from __future__ import annotations

import itertools
import math
import secrets
from dataclasses import replace

import numpy as np
import pytest

from hostlib.protocol import constants
from hostlib.protocol.check_words import CODES, CheckWords, check_words
from hostlib.protocol.header import Header
from tests.checks import SECRET, checks, engine_checks
from tests.property.frame import ELEMENTS, Checks

HEADER = Header(slot=300, generation=0x12345678, exponent=213, epoch=0x89ABCDEF, element_count=ELEMENTS)
WORLDS = [1, 2, 3, 31, 32, 512]
LEGAL_CODES = (0, *range(52, 329), constants.EXPONENT_SPECIAL)


def contributions(world: int, seed: int = 1) -> np.ndarray:
    """int32 (world, ELEMENTS), whose sum stays within a block's range."""
    largest = 2**30 // world
    return np.random.default_rng(seed).integers(-largest, largest + 1, (world, ELEMENTS), np.int32)


def summed(words: CheckWords, values: np.ndarray, ranks: list[int]) -> Header:
    """The header of what a switch makes of these ranks' contributions."""
    each = [words.word(HEADER, values[rank], [rank]) for rank in ranks]
    return replace(HEADER, check=sum(each) & 0xFFFFFFFF)


@pytest.mark.parametrize("world", WORLDS)
def test_they_follow_from_the_secret_as_the_page_says(world: int) -> None:
    for secret in (SECRET, secrets.token_hex(16)):
        words, page = check_words(secret, world, ELEMENTS), Checks(bytes.fromhex(secret), world)
        assert words.prime == page.prime
        assert 2**31 < world * words.prime <= 2**32
        assert all(words.prime % divisor for divisor in range(2, math.isqrt(words.prime) + 1))
        values = contributions(world).sum(axis=0, dtype=np.int32)
        for ranks in ([0], [world - 1], range(world)):
            assert words.word(HEADER, values, ranks) == page.word(HEADER, values.view(np.uint32), ranks)
        for code in LEGAL_CODES:
            assert words.next_word(code) == page.next_word(code)


def test_nothing_of_one_secret_or_size_is_anothers() -> None:
    words, other, larger = checks(2, ELEMENTS), check_words("ff" * 16, 2, ELEMENTS), checks(3, ELEMENTS)
    assert len({words.prime, other.prime, larger.prime}) == 3
    for a, b in itertools.combinations((words, other, larger), 2):
        assert np.count_nonzero(a.elements == b.elements) == 0
        assert np.count_nonzero(a.codes == b.codes) < 3
    assert checks(2, 256).prime == words.prime
    assert np.array_equal(checks(2, 256).elements[:ELEMENTS], words.elements)


@pytest.mark.parametrize("world", WORLDS)
def test_a_true_sum_is_right_and_no_words_wrap(world: int) -> None:
    words, values = checks(world, ELEMENTS), contributions(world)
    assert sum(words.word(HEADER, each, [rank]) for rank, each in enumerate(values)) < 2**32
    total = values.sum(axis=0, dtype=np.int32)
    header = summed(words, values, list(range(world)))
    assert words.is_right(header, total)
    for name in ("slot", "generation", "exponent", "epoch"):
        assert not words.is_right(replace(header, **{name: getattr(header, name) + 1}), total)


def test_a_rank_that_counts_twice_and_one_that_is_missing_do_not_make_up_for_each_other() -> None:
    words, values = checks(4, ELEMENTS), contributions(4)
    for ranks in ([0, 1, 2], [0, 1, 2, 3, 3], [0, 1, 2, 2], [0, 0, 0, 0]):
        assert not words.is_right(summed(words, values, ranks), values[ranks].sum(axis=0, dtype=np.int32))


def test_what_passed_the_old_word_does_not_pass() -> None:
    """Two flipped bits 31: each contributed 2^31, whatever its odd weight."""
    words, values = checks(2, ELEMENTS), contributions(2)
    header, total = summed(words, values, [0, 1]), values.sum(axis=0, dtype=np.int32)
    for first, second in itertools.combinations(range(ELEMENTS), 2):
        damaged = total.view(np.uint32).copy()
        damaged[[first, second]] ^= 2**31
        assert not words.is_right(header, damaged)


def test_whoever_knows_the_prime_alone_can_forge_and_nobody_else_does() -> None:
    """The reason why it is a secret: an error that is a multiple of it always passes."""
    words, values = checks(32, ELEMENTS), contributions(32) // 4
    header, total = summed(words, values, list(range(32))), values.sum(axis=0, dtype=np.int32)
    total[7] += words.prime
    assert words.is_right(header, total)
    assert check_words("ff" * 16, 32, ELEMENTS).prime != words.prime


@pytest.mark.parametrize("world", [2, 32])
def test_next_exponents_are_ordered_and_up_to_four_flipped_bits_show(world: int) -> None:
    words, own = checks(world, ELEMENTS), engine_checks(world, ELEMENTS)
    assert (np.diff(words.codes.astype(np.int64)) > 0).all() and len(words.codes) == CODES
    flips = [sum(1 << bit for bit in bits) for n in range(1, 5) for bits in itertools.combinations(range(32), n)]
    for code in LEGAL_CODES:
        word = words.next_word(code)
        assert words.code(word) == own.code(word) == code and own.next_word(code) == word
        damaged = np.array(flips, np.uint32) ^ np.uint32(word)
        assert not (words.codes[damaged >> 23] == damaged).any()
    for word in (0, words.next_word(200) ^ 1, words.next_word(200) ^ 1 << 23):
        assert words.code(word) is own.code(word) is None
