"""Check words: what they are for a job, from the secret that its members share. The reference in numpy.

hostlib/native/wire/check_words.h makes and tests them for the engine, with the numbers that are derived here.

Source: docs/protocol.md, "Check word" and "The next exponent".
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hostlib.protocol import constants
from hostlib.protocol.header import ELEMENTS, Header

CODES, CODE_SHIFT = 512, 23
LARGEST_ELEMENTS = 2048
_STREAM_BYTES = 4096
# Together they tell primes below 4,759,123,141 from composites (Jaeschke 1993).
_WITNESSES = (2, 7, 61)


@dataclass(frozen=True, slots=True, eq=False)
class CheckWords:
    """The check words of one job.

    Attributes:
        prime: above 2^31 / ranks, and at most 2^32 / ranks.
        fields: weights of slot, generation, exponent and epoch, in 1..prime - 1.
        elements: weights of the elements, uint32 (E,), in 1..prime - 1.
        ranks: a term for each rank, uint32 (ranks,), in 1..prime - 1.
        codes: what next_exponent is for each code, uint32 (512,).
    """

    prime: int
    fields: tuple[int, int, int, int]
    elements: np.ndarray
    ranks: np.ndarray
    codes: np.ndarray

    def word(self, header: Header, elements: np.ndarray, ranks: Sequence[int] = (0,)) -> int:
        """The word that a packet with these contents must carry; a switch's sum of words is this one modulo the prime.

        Args:
            elements: shape (E,), int32, or other integers of the same bits.
            ranks: whose contributions these are the sum of; a chunk or a NACK is rank 0's.
        """
        signed = elements.astype(np.uint32).view(np.int32)
        vector = sum(map(int.__mul__, self.elements[: len(signed)].tolist(), signed.tolist()))
        covered = (header.slot, header.generation, header.exponent, header.epoch)
        header_part = len(ranks) * sum(map(int.__mul__, self.fields, covered))
        rank_part = sum(int(self.ranks[rank]) for rank in ranks)
        return int(vector + header_part + rank_part) % self.prime

    def is_right(self, header: Header, elements: np.ndarray) -> bool:
        """Whether a sum over all ranks has the word that it must have; a chunk's or NACK's is of one rank."""
        return header.check % self.prime == self.word(header, elements, range(len(self.ranks)))

    def next_word(self, code: int) -> int:
        """A code as `next_exponent` carries it."""
        return int(self.codes[min(code, CODES - 1)])

    def code(self, next_word: int) -> int | None:
        """The inverse; None for a word that no rank sends."""
        index = next_word >> CODE_SHIFT
        if self.codes[index] != next_word:
            return None
        return constants.EXPONENT_SPECIAL if index == CODES - 1 else index


@lru_cache(maxsize=64)
def check_words(secret: str, ranks: int, elements: int = ELEMENTS) -> CheckWords:
    """The check words of a job.

    Args:
        secret: of this life of the job, from the controller; hexadecimal.
        ranks: of the whole job; 1 for streams of chunks, whose words are not summed.
        elements: per packet.
    """
    key = bytes.fromhex(secret) + ranks.to_bytes(2, "big")
    prime = next(
        candidate
        for word in _words(b"prime", key)
        if ranks * (candidate := word // ranks) > 1 << 31 and _is_prime(candidate)
    )
    slot, generation, exponent, epoch = _below(prime, b"fields", key, 4).tolist()
    low = np.frombuffer(_stream(b"codes", key, 4 * CODES), ">u4").astype(np.uint32) % np.uint32(1 << CODE_SHIFT)
    codes = (np.arange(CODES, dtype=np.uint32) << np.uint32(CODE_SHIFT)) + low
    fields = (slot, generation, exponent, epoch)
    return CheckWords(
        prime, fields, _below(prime, b"elements", key, elements), _below(prime, b"ranks", key, ranks), codes
    )


def _below(prime: int, purpose: bytes, key: bytes, count: int) -> np.ndarray:
    """Numbers in 1..prime - 1, uint32 (count,)."""
    words = np.frombuffer(_stream(purpose, key, 8 * count), ">u8")
    return (1 + words % np.uint64(prime - 1)).astype(np.uint32)


def _stream(purpose: bytes, key: bytes, count: int) -> bytes:
    """The first bytes of a stream that belongs to this purpose and job (FIPS 202)."""
    return hashlib.shake_256(b"netfold " + purpose + b"\0" + key).digest(count)


def _words(purpose: bytes, key: bytes) -> Iterator[int]:
    """The stream's words of 32 bits."""
    for begin in itertools.count(step=_STREAM_BYTES):
        stream = _stream(purpose, key, begin + _STREAM_BYTES)[begin:]
        yield from np.frombuffer(stream, ">u4").tolist()


def _is_prime(number: int) -> bool:
    """Miller and Rabin's test, which is exact for numbers below 2^32 with these witnesses."""
    if number in _WITNESSES:
        return True
    if number < 2 or number % 2 == 0:
        return False
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    for witness in _WITNESSES:
        power = pow(witness, (number - 1) >> twos, number)
        squares = itertools.accumulate(range(twos - 1), lambda x, _: x * x % number, initial=power)
        if power != 1 and number - 1 not in squares:
            return False
    return True
