"""How the scales of a tensor's first blocks are agreed on: the reference of hostlib/native/block_float/openings.cpp.

Source: docs/protocol.md, "Prologues".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hostlib.protocol import constants

KIND_WORDS = 2
LEVELS, LEVEL_CODES = 65, 4
SUM_BITS = 30
HIGHEST_CODE = constants.EXPONENT_BIAS + 128
SPECIAL_LEVEL = LEVELS - 1
SPECIAL_CODE = 1023
"""EXPONENT_SPECIAL in a device's codes: above every other code, and a finite float16 when its bits are read as one."""


def levels_per_word(world_size: int) -> int:
    """Levels that a word of a prologue counts: a count has the bits of the world size."""
    return SUM_BITS // world_size.bit_length()


def level_words(world_size: int) -> int:
    """Words of a prologue that tell of one block."""
    return -(-LEVELS // levels_per_word(world_size))


def level_of(code: int) -> int | None:
    """The level that stands for a block's code; None for a block of zeros."""
    if code == constants.EXPONENT_ZERO:
        return None
    if code in (constants.EXPONENT_SPECIAL, SPECIAL_CODE):
        return SPECIAL_LEVEL
    return max(SPECIAL_LEVEL - 1 - (HIGHEST_CODE - code) // LEVEL_CODES, 0)


def rounded(codes: np.ndarray) -> np.ndarray:
    """The largest codes of the levels that stand for these; integers of any shape. Special codes stay what they are."""
    levels = np.maximum(SPECIAL_LEVEL - 1 - (HIGHEST_CODE - codes.astype(np.int32)) // LEVEL_CODES, 0)
    largest = HIGHEST_CODE - (SPECIAL_LEVEL - 1 - levels) * LEVEL_CODES
    is_ordinary = (codes != constants.EXPONENT_ZERO) & (codes != SPECIAL_CODE) & (codes != constants.EXPONENT_SPECIAL)
    return np.where(is_ordinary, largest, codes).astype(codes.dtype)


@dataclass(frozen=True, slots=True)
class Openings:
    """The prologues of a lane's part of a tensor.

    Attributes:
        blocks: whose codes prologues agree on.
        each: of them in one prologue, but for the last.
        prologues: their number.
        by_levels: else each prologue has one code, that of its block, or of an int32 tensor.
    """

    blocks: int
    each: int
    prologues: int
    by_levels: bool

    @classmethod
    def of(cls, dtype: str, chunks: int, slots: int, elements: int, world_size: int) -> Openings:
        """Of a part of so many chunks; dtype by name."""
        blocks = min(chunks, slots)
        room = max(elements - KIND_WORDS, 0) // level_words(world_size)
        by_levels = dtype != "int32" and blocks > 1 and room > 1
        each = max(blocks, 1) if dtype == "int32" else room if by_levels else 1
        return cls(blocks, each, -(-blocks // each), by_levels)


@dataclass(frozen=True, slots=True)
class TensorCut:
    """How the packet engine cuts tensors: into blocks of `elements`, and these into contiguous parts, one for each of
    the `lanes`, of `slots` each.
    """

    elements: int
    slots: int
    lanes: int
    world_size: int

    def parts(self, count: int) -> Iterator[tuple[int, int]]:
        """The first block, and that behind the last, of each part of a tensor of so many values."""
        blocks = -(-count // self.elements)
        return itertools.pairwise(lane * blocks // self.lanes for lane in range(self.lanes + 1))

    def openings(self, dtype: str, chunks: int) -> Openings:
        """The prologues of a part of so many chunks; dtype by name."""
        return Openings.of(dtype, chunks, self.slots, self.elements, self.world_size)

    def positions(self, count: int, dtype: str = "float32") -> int:
        """Slots that the switch completes for one all-reduce: prologues and chunks."""
        return sum(end - first + self.openings(dtype, end - first).prologues for first, end in self.parts(count))

    def round_openings(self, codes: np.ndarray, count: int, dtype: str = "float32") -> None:
        """Replace own codes, integers (blocks,), of a tensor of so many values by those under which blocks are sent."""
        for first, end in self.parts(count):
            openings = self.openings(dtype, end - first)
            if openings.by_levels:
                codes[first : first + openings.blocks] = rounded(codes[first : first + openings.blocks])
